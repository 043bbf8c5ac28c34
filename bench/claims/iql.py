"""IQL's and AWAC's claim: of mixed data they imitate the better part."""

from __future__ import annotations

from control_bed import SMALL, ControlBed, final_return
from harness import Claim, Statement, Variant, main

CLAIM = Claim(
    name="iql",
    title="iql and awac beside bc on mixed data of Pendulum",
    about="""Both papers weigh the imitation of a recorded action by its advantage, so that of data of mixed quality the
    better part is imitated. Here three tenths of the episodes are by a controller written by hand and the others random; bc
    imitates both.

    `likelihood` is iql at a beta of 0: the same policy and loss without the weights.""",
    variants={
        "bc": Variant("bc", {"policy.hidden": (64, 64)}),
        "likelihood": Variant("iql", {**SMALL, "models.value.network.hidden": (64, 64), "surrogate.beta": 0.0}),
        "iql": Variant("iql", {**SMALL, "models.value.network.hidden": (64, 64)}),
        "awac": Variant("awac", SMALL),
    },
    bed=ControlBed(data="mixed:expert=0.3", data_steps=10_000),
    settings={"steps": 20, "updates_per_step": 300, "lr": 1e-3, "minibatch": 128, "eval_every": 2, "eval_problems": 10},
    measures={"final return": final_return},
    statements=[
        Statement("iql", "return above that of", "bc", "final return"),
        Statement("iql", "return above that of", "likelihood", "final return"),
        Statement("awac", "return above that of", "bc", "final return"),
    ],
    seeds=5,
    curves={"return": "return"},
    chosen="""nothing was tried: coefficients are the methods' own.""",
)

if __name__ == "__main__":
    main(CLAIM)
