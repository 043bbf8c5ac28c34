"""Who won among the steps that follow the same beginning: contests of a search tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.objective.functional.contests import first_of_group, group_extreme
from upslope.types import Batch


@dataclass(frozen=True)
class SiblingValues(Advantage):
    r"""The step of highest value of each group wins, that of lowest loses, by what a search has found (MCTS-DPO).

    Of equal ones the more visited is the better. Steps that nothing is known of (value NaN) take no part. A win is the less sure
    the more often the loser was visited:

    .. math::  A_w = 1 - 2a = -A_l, \qquad a = \min\Big(1 - \frac{1}{1 + N_l / \max(1, N_w)}, \tfrac12\Big)

    A contest whose loser was visited as often as its winner says nothing, and nobody wins it.

    Fields:
        smoothing: take visits into account. Without it every win is certain.
        losers: every step of lower value than the best loses, not only the worst.
        gap: what best and worst must be apart.
    """

    ranges: ClassVar = {"gap": "[0, inf)"}

    smoothing: bool = True
    losers: bool = False
    gap: float = 0.0

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "signal.value", "signal.visits"})

    def __call__(self, batch: Batch) -> Tensor:
        if missing := {"value", "visits"} - batch.signal.keys():
            raise MethodError(f"SiblingValues reads signal[{min(missing)!r}], which nobody measured. Take rollout=Search, or "
                              "advantage=BestWorst for whole answers with a reward.")  # fmt: skip
        value, visits = (batch.signal[name].to(batch.sampled.dtype) for name in ("value", "visits"))
        there = (batch.lengths() > 0) & ~value.isnan()
        top, low = group_extreme(batch, value, there, "amax"), group_extreme(batch, value, there, "amin")
        best = first_of_group(batch, visits, there & (value == top), "amax")
        worst = first_of_group(batch, visits, there & (value == low), "amin")
        won, lost = (group_extreme(batch, visits, which, "amax") for which in (best, worst))
        wrong = (1 - 1 / (1 + lost / won.clamp_min(1))).clamp_max(0.5) if self.smoothing else torch.zeros_like(visits)
        behind = there & (value < top) if self.losers else worst
        sides = (1 - 2 * wrong) * (best.to(value.dtype) - behind.to(value.dtype))
        return batch.per_decision(torch.where((top > low) & (top - low > self.gap), sides, 0.0))
