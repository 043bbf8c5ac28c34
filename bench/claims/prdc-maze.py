"""PRDC's and A2PR's claim in a simulated maze: data that are nine tenths random."""

from __future__ import annotations

from control_bed import SMALL, ControlBed, final_return
from harness import Claim, Statement, Variant, main

CLAIM = Claim(
    name="prdc-maze",
    title="prdc and a2pr beside td3-bc in PointMaze, on data that are nine tenths random",
    about="""As in the small room with a wall (`prdc`), in MuJoCo: a ball is pushed through the U of PointMaze_UMaze-v3 and
    is paid 1 for every step of 300 at which it is near a goal that is elsewhere in each episode. Of a hundred recorded
    episodes ten are by a controller that knows the way, the others are random. Random actions return about 20, the controller
    about 250.""",
    variants={
        "bc": Variant("bc", {"policy.hidden": (64, 64)}),
        "td3-bc": Variant("td3-bc", SMALL),
        "prdc": Variant("prdc", SMALL),
        "a2pr": Variant("a2pr", {**SMALL, "models.value.network.hidden": (64, 64), "models.vae.network.hidden": (128, 128)}),
    },
    bed=ControlBed("gym:PointMaze_UMaze-v3", data="mixed:expert=0.1", data_steps=30_000),
    settings={"steps": 20, "updates_per_step": 500, "lr": 1e-3, "minibatch": 128, "eval_every": 5, "eval_problems": 10},
    measures={"final return": final_return},
    statements=[
        Statement("prdc", "return above that of", "td3-bc", "final return"),
        Statement("a2pr", "return above that of", "td3-bc", "final return"),
        Statement("td3-bc", "return above that of", "bc", "final return"),
    ],
    seeds=5,
    curves={"return": "return"},
    chosen="""nothing was tried: coefficients are the methods' own, the other settings those of `prdc` with more data and
    updates.""",
)

if __name__ == "__main__":
    main(CLAIM)
