"""H2O's claim: few real recordings and a simulator that is wrong give more than either alone."""

from __future__ import annotations

from control_bed import HALF_TRAINED, SMALL, ControlBed, final_return
from harness import Claim, Statement, Variant, main

REAL, WRONG = "gym:Pendulum-v1", "gym:Pendulum-v1:params.gravity=15"

CLAIM = Claim(
    name="h2o",
    title="h2o: a pendulum learned in a simulator with too much gravity",
    about="""The paper says that recordings of the real world and a simulator whose physics differ give a better policy
    than the simulator alone and than the recordings alone. Here the real pendulum has a gravity of 10 and 2000 steps were
    recorded of a policy that sac had half learned; the simulator has 15. Returns are those in the real one. sac learns in the
    simulator, cql from the recordings. CQL's penalty draws 4 actions of each kind in place of 10, to be quicker.""",
    variants={
        "sac": Variant("sac", SMALL),
        "cql": Variant("cql", {**SMALL, "models.q.penalty.samples": 4}, {"lr": 1e-4}),
        "h2o": Variant("h2o", SMALL),
    },
    bed=ControlBed(WRONG, data=HALF_TRAINED, data_steps=2000, data_task=REAL, test_task=REAL),
    settings={
        "steps": 20,
        "horizon": 300,
        "updates_per_step": 300,
        "lr": 1e-3,
        "minibatch": 128,
        "eval_problems": 10,
        "eval_every": 2,
    },
    measures={"final return": final_return},
    statements=[
        Statement("h2o", "return in the real world above that of", "sac", "final return"),
        Statement("h2o", "return in the real world above that of", "cql", "final return"),
    ],
    seeds=5,
    curves={"return": "return in the real world"},
    chosen="""nothing was tried: coefficients are the method's own.""",
)

if __name__ == "__main__":
    main(CLAIM)
