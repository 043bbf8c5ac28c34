"""A fixed set of training problems that come back: ``--train-problems N``."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from upslope.errors import UserError
from upslope.tasks.data_task import DataTask
from upslope.tasks.mixed import MixedTask
from upslope.tasks.text import Problem, Split, TextTask, WrappedTask

STALE_DRAWS = 20
"""Draws in a row without a new problem, before a task counts as used up."""
FEWEST_DRAWN = 64


@dataclass(frozen=True)
class FixedProblems(WrappedTask):
    """A task whose training problems are these; its other splits are as they were.

    Fields:
        problems: no two alike. A draw gives each once before any comes twice.
        wanted: how many were asked for.
    """

    problems: tuple[Problem, ...] = field(repr=False)
    wanted: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        few = f"{self.name} has only {len(self.problems)} different training problems: all are taken, not {self.wanted}."
        return (*super().remarks, *((few,) if len(self.problems) < self.wanted else ()))

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        if split != "train":
            return self.task.sample(count, split, rng)
        passes = [rng.permutation(len(self.problems)) for _ in range(-(-count // len(self.problems)))]
        return [self.problems[row] for row in np.concatenate([np.zeros(0, int), *passes])[:count]]


def fix_problems(task: TextTask, count: int, rng: np.random.Generator) -> TextTask:
    """The task with ``count`` training problems, drawn once; of a file the first by their hash, of a mixture as many of each part.

    Raises:
        UserError: if a part of a mixture would have none.
    """
    if isinstance(task, DataTask):
        return task.first(count)
    if isinstance(task, MixedTask):
        parts = len(task.parts)
        if count < parts:
            raise UserError(f"--train-problems {count} leaves some of the {parts} parts of {task.name} without any. Give more.")
        shares = [count // parts + (number < count % parts) for number in range(parts)]
        return MixedTask(tuple(fix_problems(part, share, rng) for part, share in zip(task.parts, shares, strict=True)))
    found: dict[int, Problem] = {}
    stale = 0
    while len(found) < count and stale < STALE_DRAWS:
        before = len(found)
        for problem in task.sample(max(FEWEST_DRAWN, count - before), "train", rng):
            found.setdefault(problem.id, problem)
        stale = 0 if len(found) > before else stale + 1
    return FixedProblems(task, tuple(found.values())[:count], count)
