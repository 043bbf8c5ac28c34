"""A task without the problems whose prompts are too long for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.plain_data import Prompt
from upslope.tasks.text import Problem, Split, WrappedTask

MOST_DRAWS = 20
"""Times that problems are drawn in place of those that are too long, before the task is given up."""


@dataclass(frozen=True)
class OnlyFitting(WrappedTask):
    """The problems of a task that makes them as they are asked for, less those that do not fit.

    In the place of each one that is too long another is drawn with the same generator, so the draw is repeated by a seed as
    ever, and a draw that holds no long one is that of the task itself.
    """

    fits: Callable[[Sequence[Prompt]], list[bool]] = field(compare=False)

    @property
    def remarks(self) -> tuple[str, ...]:
        return (
            *super().remarks,
            "Problems with too long a prompt are left out; others are drawn in their place.",
        )

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        found: list[Problem] = []
        for _ in range(MOST_DRAWS):
            drawn = self.task.sample(count - len(found), split, rng)
            found += [problem for problem, good in zip(drawn, self.fits([each.model_input for each in drawn]), strict=True) if good]
            if len(found) >= count or not drawn:
                return found
        raise TaskError(
            f"{self.name}: after {MOST_DRAWS} draws for {split} only {len(found)} of {count} problems have a prompt that fits. "
            "Give a smaller --max-tokens, or --long cut in place of --long skip."
        )

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._fitting(super().harder(problem, rng))

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._fitting(super().easier(problem, rng))

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._fitting(super().alike(problem, rng))

    def _fitting(self, problem: Problem | None) -> Problem | None:
        return problem if problem is not None and self.fits([problem.model_input])[0] else None

    def __getattr__(self, name: str) -> Any:
        """What else a task of the user's has."""
        if name.startswith("__") or name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)
