"""SERL's claim: from twenty demonstrations a sparse reward is learned within minutes, where SAC finds none."""

from __future__ import annotations

from control_bed import SMALL, ControlBed, env_steps_until, final_return
from harness import Claim, Statement, Variant, main

REACHED = "online steps until nine of ten succeed"

CLAIM = Claim(
    name="serl",
    title="serl, rlpd and sac on a sparse reach with twenty demonstrations",
    about="""A point starts in one corner and is paid 1 for reaching a small disc near the opposite one, else nothing;
    random actions do not find it. About twenty demonstrations (250 steps) are given to rlpd and serl. The recipe's claim is
    success within some thousand steps, where SAC has none.""",
    variants={
        "sac": Variant("sac", SMALL),
        "rlpd": Variant("rlpd", {**SMALL, "policy.every": 4, "models.temperature.every": 4}, {"updates_per_step": 400}),
        "serl": Variant("serl", SMALL, {"updates_per_step": 400}),
    },
    bed=ControlBed("SparseReach", data="expert", data_steps=250),
    settings={"steps": 20, "horizon": 100, "updates_per_step": 100, "lr": 1e-3, "minibatch": 128, "eval_problems": 20},
    measures={"success": final_return, REACHED: env_steps_until(0.9, within=2000)},
    statements=[
        Statement("serl", "success above that of", "sac", "success"),
        Statement("serl", "success above", 0.9, "success"),
        Statement("serl", "fewer online steps until nine of ten succeed than", "rlpd", REACHED, higher=False),
    ],
    seeds=5,
    curves={"return": "success"},
    chosen="""nothing was tried; four updates for a step, as serl's critics have.""",
)

if __name__ == "__main__":
    main(CLAIM)
