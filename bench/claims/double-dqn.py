"""Double DQN's claim: choosing by one network and valuing by another overestimates less."""

from __future__ import annotations

from control_bed import ControlBed, final_return
from harness import Claim, Statement, Variant, final, main

NOISE, POLE = "noise alone", "CartPole-v1"

CLAIM = Claim(
    name="double-dqn",
    title="dqn and double-dqn where every value is zero",
    about="""The best of several noisy estimates is on average too high, and a target made of it hands the error on. In
    the first environment eight choices pay nothing but noise in states that follow each other at random: every value is 0,
    and what a critic says beyond that is overestimation. The second shows that both learn.""",
    variants={"dqn": Variant("dqn"), "double-dqn": Variant("double-dqn")},
    bed=ControlBed("NoisyChoices"),
    settings={"steps": 20, "horizon": 500, "updates_per_step": 500, "lr": 1e-3, "eval_every": 2, "eval_problems": 10},
    conditions={NOISE: {}, POLE: {"horizon": 1000, "bed": {"task": "gym:CartPole-v1"}}},
    measures={"final value": final("q_value", 5), "final return": final_return},
    statements=[
        Statement("dqn", "value above the truth,", 0.0, "final value", conditions=(NOISE,)),
        Statement("double-dqn", "value below that of", "dqn", "final value", higher=False, conditions=(NOISE,)),
        Statement("dqn", "return above", 195.0, "final return", conditions=(POLE,)),
        Statement("double-dqn", "return above", 195.0, "final return", conditions=(POLE,)),
    ],
    seeds=5,
    curves={"q_value": "mean value", "return": "return"},
    chosen="""sizes and rates were set beforehand and nothing was tried: those of the two methods, with an update for every
    step in the first environment and for every second in the other.""",
)

if __name__ == "__main__":
    main(CLAIM)
