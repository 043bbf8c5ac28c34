"""Documents by category: how much of a step is about facts, behaviours, conditions or whatever a task's problems are about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from upslope.errors import MethodError, UserError
from upslope.rollout.given import DocumentRollout, FromDocuments
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.text import Problem
from upslope.types import Trajectories

CANDIDATES = 8
"""Problems drawn for each row of a step, so that rare categories are among them."""


@dataclass(frozen=True)
class FromCategories(FromDocuments):
    """Documents of problems, with a share of each step for each category of problems, however rare its problems are (CAP-CPT).

    A category of which a step's candidates hold no problem leaves its share to the others.

    Fields:
        categories: those with a weight of their own, as the task's problems name them.
        weights: one for each of them; larger is seen more often. All other categories weigh 1, so that without any all of them
            are seen equally often.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"documents", "categories"})

    categories: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.categories) != len(self.weights):
            raise MethodError(f"FromCategories has {len(self.categories)} categories {self.categories} and {len(self.weights)} "
                              f"weights {self.weights}; give each category its weight.")  # fmt: skip
        if any(not weight >= 0 for weight in self.weights):
            raise MethodError(f"FromCategories.weights are {self.weights}; a weight is 0 or more.")

    def build(self, task: Any, policy: Any, **sizes: Any) -> CategoryRollout:
        mixture = dict(zip(self.categories, self.weights, strict=True))
        return CategoryRollout(task, policy, window=self.window, mixture=mixture, **sizes)


class CategoryRollout(DocumentRollout):
    """Windows of documents, whose problems are drawn by category.

    Args:
        mixture: weights of categories; those that are not in it weigh 1.
    """

    def __init__(self, *arguments: Any, mixture: dict[str, float], **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.mixture = mixture

    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories:
        rng = numpy_generator(self.seed, "tasks", step, attempt)
        found = defaultdict[str, list[Problem]](list)
        for problem in self.task.sample(tasks * CANDIDATES, "train", rng):
            if problem.documents:
                found[problem.category].append(problem)
        return self.answers(mixed(found, self._shares(list(found)), tasks, rng), step, attempt)

    def _shares(self, categories: list[str]) -> np.ndarray:
        weights = np.array([self.mixture.get(category, 1.0) for category in categories])
        if not weights.sum():
            raise UserError(f"no category of {self.task.name} has a weight above 0; it has {', '.join(categories) or 'none'}.")
        return weights / weights.sum()


def mixed(found: dict[str, list[Problem]], shares: np.ndarray, count: int, rng: np.random.Generator) -> list[Problem]:
    """``count`` problems: of each category its share, rounded by chance, drawn with replacement."""
    names = list(found)
    # One random number places all rows at equal distances: every category gets its share up to one row.
    places = (np.arange(count) + rng.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(shares), places, side="right"), len(names) - 1)
    return [found[names[category]][int(number * len(found[names[category]]))]
            for category, number in zip(chosen, rng.random(count), strict=True)]  # fmt: skip
