"""The claims of sec, mopps, pcl and knapsack, on a table: at equal numbers of answers they learn more than drawing tasks alike."""

from __future__ import annotations

import numpy as np
from beds import Lock, TableBed
from harness import Claim, Measure, Result, Statement, Variant, average, final, main

KNOWN = (0.95, 0.7, 0.3, 0.1, 0.03)
NO_KL = {"regularize.weight": 0.0}
HARDER = "rise of the mean difficulty chosen"
TEACHING = "share of answers in groups with both outcomes"


def effective() -> Measure:
    """One minus the share of answers whose group earned the same throughout."""
    return lambda result: 1 - float(np.nanmean(result.curve("constant_groups")))


def risen(result: Result) -> float:
    """The mean difficulty of the tasks chosen in the last fifth of a run above that of the first; 0 where nobody chooses."""
    chosen = result.curve("chosen_difficulty")
    fifth = max(len(chosen) // 5, 1)
    return 0.0 if np.isnan(chosen).all() else float(np.nanmean(chosen[-fifth:]) - np.nanmean(chosen[:fifth]))


CLAIM = Claim(
    name="curricula",
    title="sec, mopps, pcl and knapsack against drawing tasks alike, at equal numbers of answers",
    about="""Groups whose answers all earn the same teach nothing. These papers spend the same answers on tasks that are neither
    solved nor out of reach: by category (`sec`), by a remembered posterior of each task (`mopps`), by a learned value (`pcl`), or
    by giving hard tasks more of the answers (`knapsack`). Here 128 answers are sampled a step, 8 to each of 16 of 320 tasks of five
    levels: a token of the answer is known with probability 0.95, 0.7, 0.3, 0.1 or 0.03 at the start, and both must be right. The
    policy is linear in 96 features of a task, so that tasks help and disturb each other. The KL term of all is off.

    The value of pcl is a table here, one number for each task: it knows nothing of tasks that were never asked. Difficulty is the
    number of the level, 0 to 4.""",
    variants={
        "uniform": Variant("grpo", NO_KL),
        "sec": Variant("sec", {**NO_KL, "curriculum.temperature": 0.2}),
        "mopps": Variant("mopps", {**NO_KL, "memory.posterior.lam": 0.8}),
        "pcl": Variant("pcl", NO_KL),
        "knapsack": Variant("knapsack", NO_KL),
    },
    bed=TableBed(Lock(), contexts=320, vocabulary=8, positions=2, known=KNOWN, features=96),
    settings={"steps": 200, "lr": 0.05},
    measures={
        "final J": final("J"),
        "mean J": average("J"),
        TEACHING: effective(),
        HARDER: risen,
        "J of the worst task at the end": final("worst_context"),
        "seconds of a step": average("seconds"),
    },
    statements=[
        *(Statement(name, "mean J above that of", "uniform", "mean J") for name in ("sec", "mopps", "pcl", "knapsack")),
        *(Statement(name, "final J above that of", "uniform", "final J") for name in ("sec", "mopps", "pcl", "knapsack")),
        *(Statement(name, "more answers that teach than", "uniform", TEACHING) for name in ("sec", "mopps", "pcl")),
        Statement("sec", "a rising difficulty, by more than", 0.0, HARDER),
    ],
    seeds=10,
    curves={"J": "J", "constant_groups": "constant groups", "chosen_difficulty": "difficulty chosen"},
    chosen="The first setting tried, on seed 100; nothing was varied after that.",
)

if __name__ == "__main__":
    main(CLAIM)
