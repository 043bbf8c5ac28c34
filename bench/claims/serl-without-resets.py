"""SERL's forward-backward pair: two policies that undo what the other did learn without a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
from control_bed import SMALL, ControlBed, env_steps_until, final_return
from harness import Claim, Statement, Variant, extra, main

PAIR = {"policy.pair": True, "models.q.network.pair": True, "models.temperature.pair": True}
REACHED, IN_TURNS = "steps until nine of ten succeed", "success in turns"
UPDATES = {"updates_per_step": 400}


def success_in_turns(run: Any) -> dict[str, float]:
    """There and back without a reset: the share of phases that succeed, in ten environments of ten phases each."""
    from upslope.rollout.environments import evaluate_control

    parts = run.components
    found = evaluate_control(parts.task, run.policy, parts.rollout.state(), episodes=100, seed=78)
    return {IN_TURNS: float(np.mean(found))}


CLAIM = Claim(
    name="serl-without-resets",
    title="serl: there and back without a reset",
    about="""The point of the sparse reach is reset once. When it has reached the disc, or after 50 steps, its task is to come
    back to the corner where it began, and so on in turns: two policies with critics of their own, each beginning where the
    other ended, as the suite's bin relocation. The dataset has about twenty demonstrations of each way (500 steps), played in
    turns as well. Success is that of the way to the disc, judged from the corner; success in turns counts both ways, one after
    the other. A single policy and critics that see which task it is stand beside them, and sac, without demonstrations.""",
    variants={
        "sac": Variant("sac", {**SMALL, **PAIR}),
        "one network for both": Variant("serl", SMALL, UPDATES),
        "serl": Variant("serl", {**SMALL, **PAIR}, UPDATES),
    },
    bed=ControlBed("reach_and_return", data="expert", data_steps=500, test_task="reach_alone", after=success_in_turns),
    settings={"steps": 20, "horizon": 100, "updates_per_step": 100, "lr": 1e-3, "minibatch": 128, "eval_problems": 20},
    measures={"success": final_return, IN_TURNS: extra(IN_TURNS), REACHED: env_steps_until(0.9, within=2000)},
    statements=[
        Statement("serl", "success without resets above", 0.9, "success"),
        Statement("serl", "success in turns without resets above", 0.9, IN_TURNS),
        Statement("serl", "success without resets above that of", "sac", "success"),
    ],
    seeds=5,
    curves={"return": "success"},
    chosen="""nothing was tried: the settings are those of the claim of serl.""",
)

if __name__ == "__main__":
    main(CLAIM)
