"""Poly-PPO's claim: several right answers stay alive, at about the same reward."""

from __future__ import annotations

from beds import GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main

from upslope import method

# A table has no states to branch from but its beginning, so the group is the vine.
AT_THE_ROOT = method("polychromic").derive(rollout=None)

CLAIM = Claim(
    name="polychromic",
    title="polychromic keeps several right answers",
    about="""The paper says that fine-tuning with PPO collapses onto a few of the behaviours that earn a reward, while sets scored
    by reward times diversity keep more of them, so that more attempts cover more. Here every context has 6 right arms of 24, all
    arms starting at random around one in 24; what is counted is how many of the 6 end above a tenth, and the entropy. A table has
    no states to branch from but its beginning, so a context's 8 answers are the branches; ppo has the same answers. In the second
    condition each batch is used for 4 updates.

    `mean return` is polychromic without diversity: sets scored by their mean reward alone.""",
    variants={
        "ppo": Variant("ppo"),
        "mean return": Variant(AT_THE_ROOT, {"advantage.diversity": False}),
        "polychromic": Variant(AT_THE_ROOT),
        "polychromic-sum": Variant(AT_THE_ROOT, {"advantage.combine": "sum"}),
    },
    bed=TableBed(GoodArms(good=6), vocabulary=24, spread=1.0),
    settings={"steps": 200, "lr": 0.05},
    conditions={"one update": {}, "four updates": {"passes": 4}},
    measures={
        "final J": final("J"),
        "right arms kept": final("kept_arms"),
        "final entropy": final("exact_entropy"),
        "mean J": average("J"),
    },
    statements=[
        Statement("polychromic", "more right arms kept than", "ppo", "right arms kept"),
        Statement("polychromic", "entropy above that of", "ppo", "final entropy"),
        Statement("polychromic", "final J at most 0.02 below that of", "ppo", "final J", margin=0.02),
        Statement("polychromic", "more right arms kept than", "mean return", "right arms kept"),
    ],
    seeds=8,
    chosen="The first setting tried, on seeds 100 and 101; nothing was changed after that.",
)

if __name__ == "__main__":
    main(CLAIM)
