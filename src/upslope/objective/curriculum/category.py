"""Which tasks next? Those of categories that teach most."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.objective.base import Curriculum
from upslope.types import Offer, Order


@dataclass(frozen=True)
class ByCategory(Curriculum):
    r"""A category for each task of the step, then the next task of that category (SEC's bandit).

    .. math::  P(c) = \frac{e^{Q_c / \tau}}{\sum_k e^{Q_k / \tau}}

    over the categories of which candidates are left: a category with too few of them gives its turn to the others.

    Fields:
        memory: what says how much each category taught (`CategoryGain`).
        candidates: tasks drawn for each one taken. With C categories of equal size a step can be of one category alone from C on.
        temperature: tau. Smaller follows the memory more closely; infinite takes all categories alike.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"categories", "several categories"})
    ranges: ClassVar = {"candidates": "[1, inf)", "temperature": "(0, inf]"}

    memory: str = "category"
    candidates: int = 8
    temperature: float = 1.0

    def __call__(self, offer: Offer) -> Order:
        gain = offer.recall(self.memory).double()
        _, index = torch.unique(offer.category, return_inverse=True)
        first = torch.zeros(int(index.max()) + 1, dtype=torch.int64).scatter_(0, index, torch.arange(len(offer)))
        chance = (gain[first] / self.temperature).softmax(0)
        # No category can give more than the step asks for.
        waiting = [(index == category).nonzero()[: offer.wanted, 0].tolist()[::-1] for category in range(len(first))]
        likely, chosen = chance.tolist(), list[int]()
        for number in offer.generator(self).random(min(offer.wanted, len(offer))):
            left = [(category, share) for category, share in enumerate(likely) if waiting[category]]
            sums = list(itertools.accumulate(share for _, share in left))
            # The last one where rounding leaves none, and where all chances left are too small for numbers.
            place = next((place for place, total in enumerate(sums) if number * sums[-1] < total), len(left) - 1)
            chosen.append(waiting[left[place][0]].pop())
        taken = torch.tensor(sorted(chosen))
        return Order(taken, why={"weight": chance[index[taken]], "gain": gain[taken]})
