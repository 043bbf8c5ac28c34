"""The claim behind the reward ``milestones``: a program in stages is found sooner where each stage it reaches pays a little."""

from __future__ import annotations

import dataclasses
import time
from functools import cache
from typing import Any

import torch
from beds import Reward, TableBed, train_table
from harness import Cell, Claim, Result, Statement, Variant, average, final, main, steps_until
from torch import Tensor

LINES = (
    ("pass", "data = [(x, 2 * x + 1) for x in range(8)]", "data = open('train.csv').read()", "rows = [(0, 1), (7, 15)]",
     "data = load()", "data = []"),
    ("pass", "slope = (data[-1][1] - data[0][1]) / (data[-1][0] - data[0][0])", "slope = fit(data)", "slope = data.slope",
     "rise = data[-1][1] - data[0][1]", "slope = sum(data) / len(data)"),
    ("pass", "offset = data[0][1] - slope * data[0][0]", "offset = data[0] - slope", "offset = slope[0]", "start = slope * 0",
     "offset = data['offset']"),
    ("pass", "submission = [slope * x + offset for x in (10, 20)]", "submission = predict(10, 20)", "print(slope, offset)",
     "submission = slope * x + offset", "submission = [offset(x) for x in (10, 20)]"),
)  # fmt: skip
"""What each stage of a program may be; the second of them is right."""
ROW = {"milestones": ["data", "slope", "offset", "submission"], "tests": ["assert submission == [21.0, 41.0]"]}


PAID: dict[tuple[str, float], float] = {}


@cache
def reward_of(each: float) -> Any:
    from upslope.rewards.milestones import Milestones

    return Milestones(each=each)


def paid(programs: list[str], each: float) -> list[float]:
    """What the library's own reward pays for programs; each runs once in the sandbox."""
    if missing := [program for program in dict.fromkeys(programs) if (program, each) not in PAID]:
        blank = [""] * len(missing)
        found = reward_of(each)(blank, missing, blank, [ROW] * len(missing))["reward"]
        PAID.update(((program, each), worth) for program, worth in zip(missing, found, strict=True))
    return [PAID[program, each] for program in programs]


@dataclasses.dataclass(frozen=True)
class Programs(Reward):
    """Programs of four lines, a token for each."""

    each: float = 0.1

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        programs = ["\n".join(LINES[stage][line] for stage, line in enumerate(row)) for row in tokens.tolist()]
        return torch.tensor(paid(programs, self.each))


@dataclasses.dataclass(frozen=True)
class ProgramBed:
    """A table that writes programs of four lines, six ways to write each: one of 1,296 programs is right."""

    def train(self, cell: Cell) -> Result:
        began, settings = time.perf_counter(), dict(cell.settings)
        bed = TableBed(Programs(each=settings.pop("each")), contexts=4, vocabulary=len(LINES[0]), positions=len(LINES))
        run = train_table(cell.method, bed, seed=cell.seed, **settings)
        success = run.curve("success")
        return Result(cell, run.before["success"], success[-1], time.perf_counter() - began, run.metrics, {})


CLAIM = Claim(
    name="milestones",
    title="a program in stages, paid for what it reaches or for its end alone",
    about="""The paper's agents write programs that load data, fit, predict and submit, and earn nothing until all of it works. A
    note behind each stage, put there by somebody else than the policy, pays a little for every stage that is reached; the paper
    claims that this lets training begin where the end alone is hardly ever seen.

    Here a table writes four lines, each in one of six ways; one way is right, the others raise an error, bind another name, or
    make what a later line breaks on. All programs run in the sandbox under the library's reward `milestones`: the share of tests
    passed by a program that submits, else -10 and 0.1 for each stage reached. `the end alone` pays nothing for stages. Both
    learn with grpo from 4 x 8 programs a step. Success is the exact chance of the right program.""",
    variants={"milestones": Variant("grpo", settings={"each": 0.1}), "the end alone": Variant("grpo", settings={"each": 0.0})},
    bed=ProgramBed(),
    settings={"steps": 150, "tasks_per_step": 4, "samples_per_task": 8, "lr": 0.05},
    measures={
        "steps until half of all programs are right": steps_until("success", 0.5),
        "mean success over the run": average("success"),
        "final success": final("success"),
    },
    statements=[
        Statement("milestones", "fewer steps until half are right than", "the end alone",
                  "steps until half of all programs are right", higher=False),
        Statement("milestones", "mean success above that of", "the end alone", "mean success over the run"),
        Statement("milestones", "final success above that of", "the end alone", "final success"),
    ],
    seeds=10,
    curves={"success": "chance of the right program"},
    chosen="""the programs, the sizes and the learning rate were set before anything was run.""",
)  # fmt: skip

if __name__ == "__main__":
    main(CLAIM)
