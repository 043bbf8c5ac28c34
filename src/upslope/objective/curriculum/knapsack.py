"""How many answers to each task? As many as buy the most under a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.errors import MethodError
from upslope.objective.base import Curriculum
from upslope.types import Offer, Order


@dataclass(frozen=True)
class Knapsack(Curriculum):
    r"""Divides the answers of a step among its tasks (Knapsack RL).

    .. math::
        \max_N \sum_i \underbrace{[1 - p_i^{N_i} - (1 - p_i)^{N_i}]}_{\text{chance of a gradient}}\; p_i (1 - p_i)^2, \qquad
        \sum_i N_i = tasks \cdot samples,\quad low \le N_i \le high

    A further answer to a task is worth less than the one before, so giving each to whom it is worth most is the optimum. A task
    never asked gets the usual number; one that always failed, or never did, ``failed`` or ``solved`` answers. What is then left is
    divided among the others up to the number at which each has a gradient with chance ``confidence``; the rest goes to those that
    always failed (without any, to others outside the division; without those too, back into it).

    Fields:
        memory: what says how a task went the last time (`LastSuccess`).
        candidates: tasks drawn for each one taken; 1 takes them as they come and only divides the answers.
        low: the fewest answers to a task.
        high: the most answers that the division gives to one.
        failed: answers to a task that always failed, before what is left over.
        solved: answers to a task that never failed.
        confidence: with which chance a group is to have both outcomes before answers are given away to tasks without.
    """

    ranges: ClassVar = {
        **dict.fromkeys(("candidates", "low", "high", "failed", "solved"), "[1, inf)"),
        "confidence": "(0, 1)",
    }  # fmt: skip

    memory: str = "rate"
    candidates: int = 1
    low: int = 2
    high: int = 128
    failed: int = 2
    solved: int = 2
    confidence: float = 0.9

    def check_sizes(self, tasks: int, samples: int) -> None:
        least = max(self.low, self.failed, self.solved)
        if samples < least:
            raise MethodError(
                f"Knapsack gives every task at least {least} answers, {tasks * least} in all, and a step has {tasks} x {samples} = "
                f"{tasks * samples}. Give --samples-per-task {least} or more, or a smaller curriculum.low, .failed and .solved."
            )
        if samples > self.high:
            raise MethodError(
                f"Knapsack gives no task more than high={self.high} answers, and a step has {samples} for each. "
                f"Give --set curriculum.high={samples} or more, or a smaller --samples-per-task."
            )

    def __call__(self, offer: Offer) -> Order:
        chosen = torch.arange(min(offer.wanted, len(offer)))
        rate = offer.recall(self.memory).double()[chosen]
        samples = torch.tensor(self.divided(rate.tolist(), offer.wanted * offer.samples, offer.samples))
        return Order(chosen, samples, why={"rate": rate}, metrics={"unseen": float(rate.isnan().double().mean())})

    def divided(self, rates: Sequence[float], budget: int, usual: int) -> list[int]:
        """Answers to tasks of these success rates, NaN where unknown: ``budget`` in all."""
        uncertain = [place for place, rate in enumerate(rates) if 0 < rate < 1]
        failing = [place for place, rate in enumerate(rates) if rate == 0]
        begin = {0.0: self.failed, 1.0: self.solved}
        found = [self.low if 0 < rate < 1 else begin.get(rate, usual) for rate in rates]
        left = budget - sum(found)
        others = failing or sorted(set(range(len(rates))) - set(uncertain))
        if not uncertain and not failing:
            return _evenly(budget, len(rates))
        needed = sum(int(min(self.high, self._enough(rates[place]))) for place in uncertain)
        spare = max(0, left - needed) if others else 0
        for place, more in zip(others, _evenly(spare, len(others)), strict=True):
            found[place] += more
        shares = knapsack([rates[place] for place in uncertain], left - spare + self.low * len(uncertain), self.low, self.high)
        for place, share in zip(uncertain, shares, strict=True):
            found[place] = share
        return found

    def _enough(self, rate: float) -> float:
        """Answers after which a group has both outcomes with chance ``confidence``, counted by the likelier one alone."""
        return math.log(1 - self.confidence) / math.log(max(rate, 1 - rate))


def worth(answers: int, rate: float) -> float:
    """What so many answers to a task of this success rate are worth."""
    return (1 - rate**answers - (1 - rate) ** answers) * rate * (1 - rate) ** 2


def knapsack(rates: Sequence[float], budget: int, low: int, high: int) -> list[int]:
    """Answers to each task, between ``low`` and ``high``, of the largest total `worth`; what none can take is spread evenly.

    What one more answer adds shrinks with every answer, so the largest additions of all tasks together are the optimum.
    """
    rate, before = torch.tensor(rates, dtype=torch.float64).unsqueeze(1), torch.arange(low, high, dtype=torch.float64)
    adds = (rate**before * (1 - rate) + (1 - rate) ** before * rate) * rate * (1 - rate) ** 2
    left = budget - low * len(rates)
    best = adds.flatten().argsort(descending=True, stable=True)[: max(left, 0)]
    found = (torch.bincount(best // max(high - low, 1), minlength=len(rates)) + low).tolist()
    return [own + more for own, more in zip(found, _evenly(max(left - len(best), 0), len(rates)), strict=True)]


def _evenly(total: int, parts: int) -> list[int]:
    """A number in whole parts as equal as can be, the larger ones first."""
    return [total // parts + (place < total % parts) for place in range(parts)]
