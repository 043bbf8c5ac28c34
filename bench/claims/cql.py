"""CQL's claim: values of actions that the data lack are below the truth, where TD3's are above it."""

from __future__ import annotations

from typing import Any

import numpy as np
from control_bed import SMALL, ControlBed
from control_envs import paid_by_size
from harness import Claim, Statement, Variant, extra, main

MISSING, RECORDED = "error of values at missing actions", "error of values at recorded actions"
OFFLINE = {"offline_steps": 10}


def errors(run: Any) -> dict[str, float]:
    """What the critics say of an action minus what it pays, over states and over actions in the data or not in them."""
    import torch

    states, actions = np.linspace(-1, 1, 21, dtype=np.float32), np.linspace(-1, 1, 41, dtype=np.float32)
    seen = torch.from_numpy(states).reshape(-1, 1, 1)
    asked = torch.from_numpy(actions).reshape(1, 1, -1, 1).expand(len(states), 1, len(actions), 1)
    with torch.no_grad():
        values = run.policy.networks["q"].answer(seen, asked, True, 0).mean((0, 1, 2)).numpy()
    error, missing = values - paid_by_size(actions), np.abs(actions) > 0.5
    return {MISSING: float(error[missing].mean()), RECORDED: float(error[~missing].mean())}


CLAIM = Claim(
    name="cql",
    title="cql and td3 at actions that the data lack",
    about="""An action in [-1, 1] pays its size up to a half, and beyond that ever less; then it is over, so that the
    value of an action is known. The data have the inner half of the actions only, where the reward rises towards both ends. A
    critic that goes on in the same way values what it has never seen above the truth. CQL says that its values stay below.""",
    variants={
        "td3": Variant("td3", SMALL, OFFLINE),
        "sac": Variant("sac", SMALL, OFFLINE),
        "cql": Variant("cql", SMALL, {"lr": 1e-4}),
    },
    bed=ControlBed("OneShot", data="narrow_action:share=0.5", data_steps=2000, after=errors),
    settings={"steps": 10, "updates_per_step": 200, "lr": 1e-3, "minibatch": 64, "eval_problems": 20},
    measures={MISSING: extra(MISSING), RECORDED: extra(RECORDED)},
    statements=[
        Statement("td3", "values of missing actions above the truth, by more than", 0.0, MISSING),
        Statement("cql", "values of missing actions below the truth, by more than", 0.0, MISSING, higher=False),
        Statement("cql", "values of missing actions below those of", "sac", MISSING, higher=False),
    ],
    seeds=5,
    curves={"q_value": "mean value of recorded actions", "return": "return"},
    chosen="""sizes and rates were set beforehand. Seed 100 was run twice to see that everything is read rightly, and nothing was
    changed by what it showed but the reward, which had not been the one described. The learning rate of cql's actor is a tenth
    of that of its critics, which learn as fast as the others'.""",
)

if __name__ == "__main__":
    main(CLAIM)
