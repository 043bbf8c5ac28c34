"""Does itool gain more after imitation than further imitation would? Its own run, with solutions in place of pairs."""

from __future__ import annotations

import importlib

from harness import Claim, Statement, Variant, main
from tool_calls import ACCURACY, ALONE, GAINED, MEASURES, SAMPLED, imitation_alone

PAIRS = importlib.import_module("itool").CLAIM
METHOD = PAIRS.variants["itool"]

CLAIM = Claim(
    name="itool-imitation",
    title="itool against its imitation alone",
    about="""The run of itool of [its claim](itool.md) against the same run in which solutions are imitated in the last steps
    too, with the learning rate of the pairs: it is shown a solution to every problem, where itool learns from what its own
    answers earn. Both are the same up to the first pair.""",
    variants={ALONE: Variant(imitation_alone("itool"), METHOD.knobs), "itool": METHOD},
    bed=PAIRS.bed,
    settings=PAIRS.settings,
    conditions=PAIRS.conditions,
    measures=MEASURES,
    statements=[
        Statement("itool", "accuracy above that of its", ALONE, ACCURACY),
        Statement("itool", "accuracy gained after the first stages above that of its", ALONE, GAINED),
        Statement("itool", "more samples right at the end than its", ALONE, SAMPLED),
    ],
    seeds=3,
    curves={"loss": "loss", "reward": "reward of answers searched for"},
    chosen="""The setting of the claim on itool, whose numbers had been seen when this was added. Five seeds were planned; time
    allowed three.""",
)

if __name__ == "__main__":
    main(CLAIM)
