"""GTPO's claim: tags that all answers share keep their probability while most answers are wrong."""

from __future__ import annotations

from beds import Lock, TableBed
from harness import Claim, Statement, Variant, average, final, main

TAGS = (0, 1, 4, 5)

CLAIM = Claim(
    name="gtpo",
    title="gtpo protects what good and bad answers share",
    about="""The paper says that formatting tokens, which right and wrong answers share, lose probability under GRPO where most
    answers of a group are wrong, and that GTPO, which does not punish them, keeps them. Here an answer is two opening tags, two
    tokens that must both be right, and two closing tags; the tags start at 0.9 each, are shared by all contexts and earn
    nothing by themselves. In half of the contexts an answer is right once in twenty-five times, in half once in four hundred.

    `conflicts alone` is gtpo without its two parts on entropy.""",
    variants={
        "grpo": Variant("grpo", {"regularize.weight": 0.0}),
        "conflicts alone": Variant("gtpo", {"weight.1.threshold": 1e9, "regularize.weight": 0.0}),
        "gtpo": Variant("gtpo"),
    },
    bed=TableBed(Lock(free=TAGS), vocabulary=16, positions=6, known=(0.2, 0.05), filler=TAGS, filler_known=0.9, shared=TAGS),
    settings={"steps": 150, "lr": 0.05},
    measures={
        "lowest probability of the tags": lambda result: float(result.curve("free_token").min()),
        "final probability of the tags": final("free_token"),
        "final J": final("J"),
        "mean J": average("J"),
    },
    statements=[
        Statement("gtpo", "lowest probability of the tags above that of", "grpo", "lowest probability of the tags"),
        Statement("gtpo", "final probability of the tags above that of", "grpo", "final probability of the tags"),
        Statement("conflicts alone", "final probability of the tags above that of", "grpo", "final probability of the tags"),
        Statement(
            "grpo", "lowest probability of the tags below their start of", 0.9, "lowest probability of the tags", higher=False
        ),
        Statement("gtpo", "final J at most 0.02 below that of", "grpo", "final J", margin=0.02),
    ],
    seeds=10,
    chosen="""The setting is the first that was written down. It was run once on seeds 100 and 101 to see that it works, and
    nothing was changed after that.""",
)

if __name__ == "__main__":
    main(CLAIM)
