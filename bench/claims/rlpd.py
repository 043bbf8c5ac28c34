"""RLPD's and MOORL's claim: some recorded data and many updates save steps in the environment."""

from __future__ import annotations

from control_bed import HALF_TRAINED, SMALL, ControlBed, env_steps_until, final_return, highest, lowest
from harness import Claim, Result, Statement, Variant, main

OFTEN = {"updates_per_step": 800}
REACHED = "online steps until -200"


def largest_value(result: Result) -> float:
    """The largest mean value by size."""
    return max(abs(highest("q_value")(result)), abs(lowest("q_value")(result)))


CLAIM = Claim(
    name="rlpd",
    title="rlpd and moorl: online steps saved by 2000 recorded transitions",
    about="""Both papers begin online with a dataset beside, and want fewer steps in the environment than SAC. The data
    are 2000 steps of a policy that sac had half learned. Here rlpd and moorl make four updates for a step of the environment,
    sac one; `sac-often` is sac with four, without the data. MOORL also says that values stay bounded: with rewards down to
    -16.3 and a discount of 0.99 none can be beyond 1630 by size.""",
    variants={
        "sac": Variant("sac", SMALL),
        "sac-often": Variant("sac", SMALL, OFTEN),
        "rlpd": Variant("rlpd", {**SMALL, "policy.every": 4, "models.temperature.every": 4}, OFTEN),
        "moorl": Variant("moorl", {**SMALL, "data.together": 4, "controller.every": 4}, OFTEN),
    },
    bed=ControlBed(data=HALF_TRAINED, data_steps=2000),
    settings={"steps": 20, "horizon": 200, "updates_per_step": 200, "lr": 1e-3, "minibatch": 128, "eval_problems": 10},
    measures={REACHED: env_steps_until(-200.0, within=4000), "final return": final_return, "largest mean value": largest_value},
    statements=[
        Statement("rlpd", "fewer online steps until -200 than", "sac", REACHED, higher=False),
        Statement("rlpd", "fewer online steps until -200 than", "sac-often", REACHED, higher=False),
        Statement("moorl", "fewer online steps until -200 than", "sac", REACHED, higher=False),
        Statement("moorl", "fewer online steps until -200 than", "sac-often", REACHED, higher=False),
        Statement("moorl", "values stay below", 1630.0, "largest mean value", higher=False),
    ],
    seeds=5,
    curves={"return": "return", "q_value": "mean value"},
    chosen="""nothing was tried. The papers make ten and five updates for a step; four are what there was time for.""",
)

if __name__ == "__main__":
    main(CLAIM)
