"""Documents by category: how much of a step is about facts, behaviours, conditions or whatever a task's problems are about."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from upslope.errors import MethodError, UserError
from upslope.rollout.given import DocumentRollout, FromDocuments

CANDIDATES = 8
"""Problems drawn for each row of a step, so that rare categories are among them."""


@dataclass(frozen=True)
class FromCategories(FromDocuments):
    """Documents of problems, with a share of each step for each category of problems, however rare its problems are (CAP-CPT).

    A category of which a step's candidates hold no problem leaves its share to the others.

    Fields:
        mixture: weights of categories, by the names that the task's problems have for them, as in ``conditional=2,factual=0.5``:
            larger is seen more often, 0 never. One that is not named weighs 1, so that without any all are seen equally often.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"documents", "categories"})

    mixture: str = ""

    def __post_init__(self) -> None:
        self.weights()

    def weights(self) -> dict[str, float]:
        """The mixture as numbers."""
        found: dict[str, float] = {}
        for each in filter(None, self.mixture.split(",")):
            category, _, weight = (word.strip() for word in each.rpartition("="))
            try:
                found[category] = float(weight)
            except ValueError:
                found[category] = -1.0
            if not (category and 0 <= found[category] < math.inf):
                raise MethodError(f"FromCategories.mixture is {self.mixture!r}, and {each!r} in it gives no category a weight of 0 "
                                  "or more. Write it as in 'conditional=2,factual=0.5'.")  # fmt: skip
        return found

    def build(self, task: Any, policy: Any, **sizes: Any) -> CategoryRollout:
        return CategoryRollout(task, policy, window=self.window, mixture=self.weights(), **sizes)


class CategoryRollout(DocumentRollout):
    """Windows of documents, whose problems are drawn by category.

    Args:
        mixture: weights of categories; those that are not in it weigh 1.
    """

    def __init__(self, *arguments: Any, mixture: dict[str, float], **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.mixture = mixture

    def _numbers(self, step: int, attempt: int, tasks: int) -> tuple[int, list[int]]:
        drawn, rng = self._drawn(step, attempt, tasks * CANDIDATES)
        found = defaultdict[str, list[int]](list)
        for number, problem in enumerate(drawn):
            if problem.documents:
                found[problem.category].append(number)
        return len(drawn), mixed(found, self._shares(list(found)), tasks, rng)

    def _shares(self, categories: list[str]) -> np.ndarray:
        weights = np.array([self.mixture.get(category, 1.0) for category in categories])
        if not weights.sum():
            raise UserError(f"no category of {self.task.name} has a weight above 0; it has {', '.join(categories) or 'none'}.")
        return weights / weights.sum()


def mixed(found: dict[str, list[int]], shares: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    """``count`` problems: of each category its share, rounded by chance, drawn with replacement."""
    names = list(found)
    # One random number places all rows at equal distances: every category gets its share up to one row.
    places = (np.arange(count) + rng.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(shares), places, side="right"), len(names) - 1)
    return [found[names[category]][int(number * len(found[names[category]]))]
            for category, number in zip(chosen, rng.random(count), strict=True)]  # fmt: skip
