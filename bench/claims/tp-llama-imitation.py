"""Does tp-llama gain more after imitation than further imitation would? Its own run, with solutions in place of pairs."""

from __future__ import annotations

import importlib

from harness import Claim, Statement, Variant, main
from tool_calls import ACCURACY, ALONE, GAINED, MEASURES, SAMPLED, imitation_alone

PAIRS = importlib.import_module("tp-llama").CLAIM
METHOD = PAIRS.variants["tp-llama"]

CLAIM = Claim(
    name="tp-llama-imitation",
    title="tp-llama against its imitation alone",
    about="""The run of tp-llama of [its claim](tp-llama.md) against the same run in which solutions are imitated in the last
    steps too, with the learning rate of the pairs: it is shown a solution to every problem, where tp-llama learns from what its
    own answers earn. Both are the same up to the first pair.""",
    variants={ALONE: Variant(imitation_alone("tp-llama"), METHOD.knobs), "tp-llama": METHOD},
    bed=PAIRS.bed,
    settings=PAIRS.settings,
    conditions=PAIRS.conditions,
    measures=MEASURES,
    statements=[
        Statement("tp-llama", "accuracy above that of its", ALONE, ACCURACY),
        Statement("tp-llama", "accuracy gained after the first stages above that of its", ALONE, GAINED),
        Statement("tp-llama", "more samples right at the end than its", ALONE, SAMPLED),
    ],
    seeds=3,
    curves={"loss": "loss", "reward": "reward of answers searched for"},
    chosen="""The setting of the claim on tp-llama, whose numbers had been seen when this was added. The run of imitation alone
    of seed 2 was made on another machine, and has the same accuracy after imitation. Five seeds were planned; time allowed
    three.""",
)

if __name__ == "__main__":
    main(CLAIM)
