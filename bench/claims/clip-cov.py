"""The claims of Clip-Cov and KL-Cov on test bed B1: the entropy lasts longer and the rare good arm is found."""

from __future__ import annotations

from beds import GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main

NO_KL = {"regularize.weight": 0.0}

CLAIM = Claim(
    name="clip-cov",
    title="clip-cov and kl-cov keep the entropy up",
    about="""The paper says that entropy falls by the covariance of log-probability and advantage, that a few tokens make up most
    of it, and that holding those back keeps the entropy up and lets the reward rise further than GRPO's. Here every context has
    one arm that pays 1 and starts at a hundredth, and a decoy that pays half: a policy that settles early settles on the decoy.
    Each rollout batch is used for 4 updates, for in the first one kl-cov's term has no gradient.

    `wide clip` is grpo with the wide bounds that clip-cov has, so that what the choice by covariance adds can be seen. The paper's
    fractions are for updates of a hundred thousand tokens; an update here has 128.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "wide clip": Variant("grpo", {**NO_KL, "surrogate.low": 1.0, "surrogate.high": 1.0}),
        "clip-cov": Variant("clip-cov", {"surrogate.fraction": 0.2, "surrogate.above": 0.5}),
        "kl-cov": Variant("kl-cov", {"regularize.fraction": 0.05}),
    },
    bed=TableBed(GoodArms(decoy=0.5), known=0.01),
    settings={"steps": 150, "lr": 0.05, "passes": 4},
    measures={
        "final J": final("J"),
        "mean entropy": average("exact_entropy"),
        "final entropy": final("exact_entropy"),
        "chance of the decoy": final("decoy_arm"),
    },
    statements=[
        Statement("clip-cov", "mean entropy above that of", "grpo", "mean entropy"),
        Statement("clip-cov", "mean entropy above that of", "wide clip", "mean entropy"),
        Statement("clip-cov", "final J above that of", "grpo", "final J"),
        Statement("kl-cov", "mean entropy above that of", "grpo", "mean entropy"),
        Statement("kl-cov", "final J above that of", "grpo", "final J"),
    ],
    seeds=10,
    chosen="""On seeds 100 to 103, clip-cov was tried with fractions of 0.05 and 0.2 from covariances above 0.5 (a bound above was
    also taken away), and kl-cov with 0.05 and 0.2. All but kl-cov at 0.2 ended above grpo; kl-cov at 0.2 did not (J 0.86
    against 0.88). The bed and the other settings are those of dapo's claim.""",
)

if __name__ == "__main__":
    main(CLAIM)
