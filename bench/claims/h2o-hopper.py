"""H2O's claim on a simulated robot: recordings of the real one, and a simulator in which it is too heavy."""

from __future__ import annotations

from control_bed import HALF_TRAINED, SMALL, ControlBed, final_return
from harness import Claim, Statement, Variant, main

REAL, WRONG = "gym:Hopper-v5", "gym:Hopper-v5:params.gravity=1.5x"
LEVELS = {"models.pair_source.network.hidden": (64, 64), "models.step_source.network.hidden": (64, 64)}

CLAIM = Claim(
    name="h2o-hopper",
    title="h2o: Hopper learned in a simulator with 1.5 times the gravity",
    about="""As with the pendulum (`h2o`): the paper says that recordings of the real world and a simulator whose physics
    differ give a better policy than the simulator alone and than the recordings alone. Here the real one is Hopper-v5, of
    which 10,000 steps were recorded of a policy that sac had learned for 10,000; the simulator has 1.5 times its gravity.
    Returns are those in the real one. sac learns in the simulator, cql from the recordings. CQL's penalty draws 4 actions of
    each kind in place of 10, to be quicker.""",
    variants={
        "sac": Variant("sac", SMALL),
        "cql": Variant("cql", {**SMALL, "models.q.penalty.samples": 4}, {"lr": 1e-4}),
        "h2o": Variant("h2o", {**SMALL, **LEVELS}),
    },
    bed=ControlBed(WRONG, data=HALF_TRAINED, data_steps=10_000, trained=10_000, data_task=REAL, test_task=REAL),
    settings={
        "steps": 20,
        "horizon": 500,
        "updates_per_step": 500,
        "lr": 1e-3,
        "minibatch": 128,
        "eval_problems": 10,
        "eval_every": 4,
    },
    measures={"final return": final_return},
    statements=[
        Statement("h2o", "return in the real world above that of", "sac", "final return"),
        Statement("h2o", "return in the real world above that of", "cql", "final return"),
    ],
    seeds=5,
    curves={"return": "return in the real world"},
    chosen="""nothing was tried: coefficients are the method's own, the other settings those of `h2o` with more steps.""",
)

if __name__ == "__main__":
    main(CLAIM)
