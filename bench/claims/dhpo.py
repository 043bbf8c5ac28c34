"""DHPO's claim under staleness (test bed S1): each rollout batch is reused for K optimiser steps, against both its parents."""

from __future__ import annotations

import numpy as np
from harness import Claim, Result, Statement, TextBed, Variant, average, final, main

TOKEN, SEQUENCE = (0.2, 0.28), (0.09, 0.125)
"""One pair of trust regions for all: the token bounds of DAPO, and for answers of 5 tokens those divided by sqrt(5)."""
HYBRID = {
    f"surrogate.{branch}.{side}": bounds[i]
    for branch, bounds in (("token", TOKEN), ("sequence", SEQUENCE))
    for i, side in enumerate(("low", "high"))
}


def learning(result: Result) -> float:
    """Share of decisions with a gradient, among groups that carry a signal."""
    return float(np.nanmean(result.curve("learning") / np.maximum(1 - result.curve("constant_groups"), 1e-9)))


def norm_variation(result: Result) -> float:
    """Variance of the gradient norm from step to step, relative to its squared mean."""
    norms = result.curve("grad_norm")
    return float(np.nanvar(norms) / np.nanmean(norms) ** 2)


def statements(ours: str) -> list[Statement]:
    return [
        *(Statement(ours, "more decisions learning than", parent, "share of decisions learning") for parent in ("grpo", "gspo")),
        Statement(ours, "gradient norms vary less than under", "grpo", "relative variance of gradient norms", higher=False),
        *(Statement(ours, "final reward above", parent, "final reward") for parent in ("grpo", "gspo")),
    ]


CLAIM = Claim(
    name="dhpo",
    title="dhpo under staleness",
    about="""The claim of the paper, made measurable: where old data are reused, mixing a token and a sequence ratio that are each
    clipped in their own region keeps more decisions learning than either parent, makes gradient norms vary less than GRPO's, and
    ends at a reward at least as high as both.

    Test bed S1: a 2-layer character model reverses 4 letters, warm-started to a greedy accuracy of 0.85; 32 problems x 8 samples a
    step, each rollout batch reused for K optimiser steps (`passes`). The evaluation is greedy, on 500 held-out problems. The KL
    term of GRPO is off and all share one pair of trust regions. Final reward: the mean of the samples of the last 10 steps.""",
    variants={
        "grpo": Variant("grpo", {"surrogate.low": TOKEN[0], "surrogate.high": TOKEN[1], "regularize.weight": 0.0}),
        "gspo": Variant("gspo", {"surrogate.low": SEQUENCE[0], "surrogate.high": SEQUENCE[1]}),
        "dhpo": Variant("dhpo", HYBRID),
        "dhpo-entropy": Variant("dhpo-entropy", HYBRID),
    },
    bed=TextBed("reverse:length=4", "tiny:width=96"),
    settings={"steps": 60, "tasks_per_step": 32, "lr": 3e-4, "warm_start": 0.85, "watch_kl": False},
    conditions={"K=4": {"passes": 4}, "K=8": {"passes": 8}},
    measures={
        "reward at the start": lambda r: r.curve("reward")[0],
        "final reward": final("reward"),
        "held-out greedy accuracy after": lambda r: r.after,
        "share of decisions learning": learning,
        "relative variance of gradient norms": norm_variation,
        "clip fraction": average("clip_fraction"),
    },
    statements=[*statements("dhpo"), *statements("dhpo-entropy")],
    seeds=5,
    chosen="""This bed is the third tried. On sorting 5 digits (greedy 0.3) and on this task from greedy 0.4, samples earned
    nothing in the few runs seen; both were dropped. A look at seed 0 of grpo, gspo and dhpo from greedy 0.75, sequence
    bounds (0.08, 0.11), came before the runs below; seed 0 is among them. Nothing was changed after they were seen.""",
    curves={"reward": "training reward", "learning": "share of decisions learning"},
)

if __name__ == "__main__":
    main(CLAIM)
