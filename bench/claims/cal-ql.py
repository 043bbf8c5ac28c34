"""Cal-QL's claim: values that are not pressed below returns lose less when learning goes on in the environment."""

from __future__ import annotations

from control_bed import HALF_TRAINED, SMALL, ControlBed, env_steps_until, final_return
from harness import Claim, Statement, Variant, at_step, main

FEWER = {**SMALL, "models.q.penalty.samples": 4}
BEFORE, LEVEL, REACHED = "return before it acts", -250.0, "online steps until -250"

CLAIM = Claim(
    name="cal-ql",
    title="cal-ql and cql: from data to the environment",
    about="""The paper says that CQL's values are so low that the first actions online look like gains whatever they are,
    and what was learned is lost again; values that do not fall below the returns of the data are kept. Here both learn from
    data of a half-trained policy for five steps of the run and go on online; sac begins with nothing. The penalty draws 4
    actions of each kind in place of 10, to be quicker.""",
    variants={
        "sac": Variant("sac", SMALL, {"lr": 1e-3}),
        "cql": Variant("cql", FEWER, {"offline_steps": 5}),
        "cal-ql": Variant("cal-ql", FEWER, {"offline_steps": 5}),
    },
    bed=ControlBed(data=HALF_TRAINED, data_steps=5000),
    settings={"steps": 21, "horizon": 250, "updates_per_step": 250, "lr": 1e-4, "minibatch": 64, "eval_problems": 10},
    measures={REACHED: env_steps_until(LEVEL, within=4000), BEFORE: at_step("return", 5), "final return": final_return},
    statements=[
        Statement("cal-ql", "fewer online steps until -250 than", "cql", REACHED, higher=False),
        Statement("cal-ql", "fewer online steps until -250 than", "sac", REACHED, higher=False),
        Statement("cal-ql", "final return above that of", "cql", "final return"),
    ],
    seeds=5,
    curves={"return": "return", "q_value": "mean value"},
    chosen="""nothing was tried. The critics' learning rate is ten times the actor's: 1e-3, as sac has it here.""",
)

if __name__ == "__main__":
    main(CLAIM)
