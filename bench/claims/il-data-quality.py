"""The claim of Data Quality in Imitation Learning: consistent demonstrations are worth more, and some noise helps."""

from __future__ import annotations

from control_bed import final_return
from data_beds import DataBed
from harness import Claim, Statement, Variant, extra, main

KNOBS = {"policy.hidden": (64, 64)}
RETURN = "final return"

CLAIM = Claim(
    name="il-data-quality",
    title="what makes demonstrations easy to imitate",
    about="""The paper says that demonstrations are good if they keep an imitator where they have been: actions should agree at a
    state, and noise of the system, which shows how to come back, helps as long as it is not large. A point is to go around a disc,
    above or below, both equally long. The same controller gives as many demonstrations in each case: always above, or above and
    below by a coin; without noise, with some, and with much of it. bc imitates each, and is judged in the same world with a little
    noise. The rows below say what `upslope data describe` measures of each.""",
    variants={
        "consistent": Variant("bc", KNOBS, {"data_task": "CalmDetour"}),
        "either way": Variant("bc", KNOBS, {"data_task": "EitherDetour"}),
        "moderate noise": Variant("bc", KNOBS, {"data_task": "ShakyDetour"}),
        "large noise": Variant("bc", KNOBS, {"data_task": "WildDetour"}),
    },
    bed=DataBed("Detour", data="expert", data_steps=150, explorer="", episodes=40),
    settings={"steps": 2, "updates_per_step": 300, "lr": 1e-3, "minibatch": 64, "eval_problems": 10},
    measures={
        RETURN: final_return,
        "action variance of the data": extra("action variance"),
        "transition noise of the data": extra("transition noise"),
        "state similarity of the data": extra("state similarity"),
    },
    statements=[
        Statement("consistent", "return above that of", "either way", RETURN),
        Statement("consistent", "action variance below that of", "either way", "action variance of the data", higher=False),
        Statement("moderate noise", "return above that of", "consistent", RETURN),
        Statement("moderate noise", "return above that of", "large noise", RETURN),
    ],
    seeds=5,
    curves={"return": "return"},
    chosen="""rates and the levels of noise were set beforehand. 400 steps of data were tried on seed 100 and 150 on seeds 100 and
    101; both gave the same picture, in which large noise did not hurt, and nothing was changed by that.""",
)

if __name__ == "__main__":
    main(CLAIM)
