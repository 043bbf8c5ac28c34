"""Methods that divide by who sampled, and t-ppo with asyncflow's correction, two steps behind."""

from __future__ import annotations

from harness import Claim, Statement, TextBed, Variant, average, final, main

ACCURACY, END, SPEED = "held-out greedy accuracy after", "final reward", "mean reward"
METHODS = ("minirl", "remix", "t-ppo+asyncflow")

CLAIM = Claim(
    name="asyncflow-others",
    title="minirl, remix and t-ppo on rows two steps old",
    about="""minirl weighs by the ratio to who really sampled, remix clips around it, and `t-ppo+asyncflow` adds the cut importance
    to windows whose tokens are of several ages. Each learns from fresh rows and from rows that are two steps older
    (`--max-staleness 2`, exact pace); 16 problems x 8 samples a step, two updates each, on `reverse`.""",
    variants={f"{name} K={age}": Variant(name, settings={"max_staleness": age}) for name in METHODS for age in (0, 2)},
    bed=TextBed("reverse", "tiny"),
    settings={
        "steps": 40, "tasks_per_step": 16, "updates_per_step": 2, "lr": 3e-4, "warm_start": 0.4, "watch_kl": False,
        "eval_problems": 200, "record": "none",
    },
    measures={END: final("reward"), SPEED: average("reward"), ACCURACY: lambda result: result.after},
    statements=[
        Statement(f"{name} K=2", "final reward at most 0.03 below that of", f"{name} K=0", END, margin=0.03) for name in METHODS
    ],
    seeds=5,
    chosen="""The settings are those of `asyncflow`; no run of these methods was made before. At this learning rate
    `t-ppo+asyncflow` unlearns what the warm start taught, on fresh rows too, so that its line says nothing of their age.""",
    curves={"reward": "training reward", "age": "mean age of a token"},
)  # fmt: skip

if __name__ == "__main__":
    main(CLAIM)
