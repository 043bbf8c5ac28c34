"""SRFT's claim: imitation and reinforcement in one stage, weighed by entropy, beat either in the same number of steps."""

from __future__ import annotations

from half_known import BED, DISTINCT, EASY_ACCURACY, HARD_ACCURACY, SETTINGS, HalfKnown
from harness import Statement, Variant, extra, main

CLAIM = HalfKnown(
    name="srft",
    title="srft on easy and impossible problems",
    about="""The paper says that one stage in which demonstrations are imitated and reinforced, each by how undecided the policy is,
    does better than either alone. The model can reverse two letters and was never shown five; problems of both lengths are mixed,
    each with a demonstration. luffy, its parent here, reinforces the demonstration and does not imitate it.""",
    variants={"dr-grpo": Variant("dr-grpo"), "sft": Variant("sft"), "luffy": Variant("luffy"), "srft": Variant("srft")},
    bed=BED,
    settings=SETTINGS,
    measures={EASY_ACCURACY: extra("easy"), HARD_ACCURACY: extra("hard"), DISTINCT: extra("distinct")},
    statements=[
        Statement("srft", "accuracy on hard problems above that of", "dr-grpo", HARD_ACCURACY),
        Statement("srft", "accuracy on hard problems above that of", "luffy", HARD_ACCURACY),
        Statement("srft", "accuracy on hard problems above that of", "sft", HARD_ACCURACY),
        Statement("srft", "accuracy on easy problems at most 0.05 below that of", "dr-grpo", EASY_ACCURACY, margin=0.05),
    ],
    seeds=5,
    chosen="""On seed 100 hpt and luffy were looked at with 150 steps, another learning rate and a start that was sure of its
    mistakes (luffy then solved no hard problem). Steps, rate and a less trained start were then set without trying. They are
    estimates: with them nothing was run to the end.""",
)

if __name__ == "__main__":
    main(CLAIM)
