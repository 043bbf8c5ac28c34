"""LUFFY's claim: a demonstration among the samples lets the policy go where its own samples never do."""

from __future__ import annotations

from half_known import BED, DISTINCT, EASY_ACCURACY, HARD_ACCURACY, SETTINGS, HalfKnown
from harness import Statement, Variant, extra, main

PLAIN = {"surrogate.demonstrated.form": "plain"}

CLAIM = HalfKnown(
    name="luffy",
    title="luffy on easy and impossible problems",
    about="""The paper says that learning from samples alone cannot leave what the policy can do, and that demonstrations in the
    group show the way; bending their probability makes unlikely tokens count, which an importance ratio would leave alone. The
    model can reverse two letters and was never shown five; problems of both lengths are mixed, each with a demonstration.
    `not bent` is luffy with the probability itself.""",
    variants={"dr-grpo": Variant("dr-grpo"), "not bent": Variant("luffy", PLAIN), "luffy": Variant("luffy")},
    bed=BED,
    settings=SETTINGS,
    measures={EASY_ACCURACY: extra("easy"), HARD_ACCURACY: extra("hard"), DISTINCT: extra("distinct")},
    statements=[
        Statement("luffy", "accuracy on hard problems above that of", "dr-grpo", HARD_ACCURACY),
        Statement("luffy", "accuracy on hard problems above that", "not bent", HARD_ACCURACY),
        Statement("luffy", "accuracy on easy problems at most 0.05 below that of", "dr-grpo", EASY_ACCURACY, margin=0.05),
    ],
    seeds=5,
    chosen="""On seed 100 hpt and luffy were looked at with 150 steps, another learning rate and a start that was sure of its
    mistakes (luffy then solved no hard problem). Steps, rate and a less trained start were then set without trying. They are
    estimates: with them nothing was run to the end.""",
)

if __name__ == "__main__":
    main(CLAIM)
