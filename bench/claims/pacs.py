"""PACS's claim on B1: more right answers within reach (pass@k) than GRPO."""

from __future__ import annotations

from beds import GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main

CLAIM = Claim(
    name="pacs",
    title="pacs and pass@k",
    about="""The paper reports a higher pass@k than GRPO's. Every context has four right arms, which start at 0.002 each in
    half of the contexts and at 0.05 each in the others; each rollout is used for 4 updates. J is pass@1, exact, as is pass@8.""",
    variants={"grpo": Variant("grpo", {"regularize.weight": 0.0}), "pacs": Variant("pacs")},
    bed=TableBed(GoodArms(good=4), known=(0.002, 0.05)),
    settings={"steps": 60, "lr": 0.1, "passes": 4},
    measures={
        "final J": final("J"),
        "final pass@8": final("pass@8"),
        "mean pass@8": average("pass@8"),
        "right arms kept": final("kept_arms"),
        "mean entropy": average("exact_entropy"),
    },
    statements=[
        Statement("pacs", "pass@8 at the end above that of", "grpo", "final pass@8"),
        Statement("pacs", "pass@8 over the run above that of", "grpo", "mean pass@8"),
        Statement("pacs", "final J above that of", "grpo", "final J"),
    ],
    seeds=10,
    chosen="Set beforehand; looked at once on seeds 100 and 101, with the scale of the score at 1 and 2.",
    fast=True,
)

if __name__ == "__main__":
    main(CLAIM)
