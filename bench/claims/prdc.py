"""PRDC's and A2PR's claim: where most of the data are poor, another target than the recorded action helps."""

from __future__ import annotations

from control_bed import SMALL, ControlBed, final_return
from harness import Claim, Statement, Variant, main

CLAIM = Claim(
    name="prdc",
    title="prdc and a2pr beside td3-bc on data that are nine tenths random",
    about="""TD3+BC draws the policy to the recorded action, good or bad. PRDC draws it to the nearest recorded pair of
    state and action, so that a good action nearby will do; A2PR to the better of the recorded action and one that an
    autoencoder of good actions makes. Here a point is pushed through the gap of a wall to a goal and pays for the way that is
    left at each of 50 steps; nine tenths of the episodes are random, one tenth by a controller that knows the way.""",
    variants={
        "bc": Variant("bc", {"policy.hidden": (64, 64)}),
        "td3-bc": Variant("td3-bc", SMALL),
        "prdc": Variant("prdc", SMALL),
        "a2pr": Variant("a2pr", {**SMALL, "models.value.network.hidden": (64, 64), "models.vae.network.hidden": (128, 128)}),
    },
    bed=ControlBed("WalledPoint", data="mixed:expert=0.1", data_steps=10_000),
    settings={"steps": 20, "updates_per_step": 300, "lr": 1e-3, "minibatch": 128, "eval_every": 2, "eval_problems": 10},
    measures={"final return": final_return},
    statements=[
        Statement("prdc", "return above that of", "td3-bc", "final return"),
        Statement("a2pr", "return above that of", "td3-bc", "final return"),
        Statement("td3-bc", "return above that of", "bc", "final return"),
    ],
    seeds=5,
    curves={"return": "return"},
    chosen="""nothing was tried: coefficients are the methods' own. The autoencoder has 128 units in place of 750.""",
)

if __name__ == "__main__":
    main(CLAIM)
