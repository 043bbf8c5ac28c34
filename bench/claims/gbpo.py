"""GBPO's claim on B1 with many passes: the ratio stays near its band where a clip lets it drift."""

from __future__ import annotations

import numpy as np
from beds import GoodArms, TableBed
from harness import Claim, Result, Statement, Variant, average, final, main


def outside(result: Result) -> float:
    """Share of decisions beyond the band on the far side, among groups that carry a signal."""
    return float(np.nanmean(result.curve("clip_fraction") / np.maximum(1 - result.curve("constant_groups"), 1 / 128)))


CLAIM = Claim(
    name="gbpo",
    title="gbpo with many passes",
    about="""GBPO regresses the ratio to a target inside the band instead of clipping, so that a ratio which has left the band
    is brought back. The paper claims a final reward at least as high as the clip's with 5 to 10 passes, and ratios that stay
    near the band. Every context has an arm that pays 1 and starts at 0.05, and a decoy that pays half. The bounds are 0.2 for
    both, and 0.3, the paper's other value, in `gbpo, 0.3`.""",
    variants={
        "grpo": Variant("grpo", {"regularize.weight": 0.0}),
        "gbpo": Variant("gbpo"),
        "gbpo, 0.3": Variant("gbpo", {"surrogate.low": 0.3, "surrogate.high": 0.3}),
    },
    bed=TableBed(GoodArms(decoy=0.5), known=0.05),
    settings={"steps": 60, "passes": 10},
    conditions={"small steps": {"lr": 0.02}, "large steps": {"lr": 0.1}},
    measures={
        "final J": final("J"),
        "mean J": average("J"),
        "share outside the band": outside,
        "mean entropy": average("exact_entropy"),
    },
    statements=[
        Statement("gbpo", "fewer decisions beyond the band than", "grpo", "share outside the band", higher=False),
        Statement("gbpo, 0.3", "final J at most 0.02 below that of", "grpo", "final J", margin=0.02),
        Statement("gbpo", "final J at most 0.02 below that of", "grpo", "final J", margin=0.02),
    ],
    seeds=5,
    chosen="""Set beforehand but for the learning rate; 0.1 and 0.02 were looked at on seeds 100 and 101 and both are
    reported. gbpo was behind in both: in a group with few successes only these move, and the others are pulled back to where
    they were.""",
)

if __name__ == "__main__":
    main(CLAIM)
