"""Better than the group's mean, and on which side of its median?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class MedianTarget(Advantage):
    r"""The group's standardised reward as a weight, and the distance from its median as a direction (GBPO).

    .. math::  A_i = \frac{R_i - \bar R}{s + \epsilon}, \qquad  \tilde A_i = \frac{R_i - \mathrm{median}\,R}{s + \epsilon}

    :math:`\tilde A` is written to ``signal["centred"]``. In a group of right and wrong answers the median is the majority's
    reward, so the majority's target is to stay; at a tie it is halfway, and both move.

    Fields:
        ddof: 1 is the unbiased spread that libraries use, 0 the population's.
        eps: added to the divisor; it matters for small groups.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    ddof: int = 1
    eps: float = 1e-6

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        stats = batch.group_stats(batch.reward, self.ddof)
        scaled = (batch.reward - stats.mean) / (stats.std + self.eps)
        return batch.per_decision(scaled.masked_fill(stats.constant, 0.0))

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        spread = batch.group_stats(batch.reward, self.ddof).std + self.eps
        return {"centred": batch.per_decision((batch.reward - group_median(batch, batch.reward)) / spread)}


def group_median(batch: Batch, value: Tensor) -> Tensor:
    """Median of each group of a value per row, broadcast to rows ``[N]``; of an even number the middle two are averaged."""
    index, groups = batch.group_index()
    by_value = value.argsort(stable=True)
    ordered = value[by_value[index[by_value].argsort(stable=True)]]
    size = torch.bincount(index, minlength=groups)
    first = size.cumsum(0) - size
    middle = (ordered[first + (size - 1) // 2] + ordered[first + size // 2]) / 2
    return middle[index]
