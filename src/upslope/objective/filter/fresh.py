"""Rows of the policy's own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class OnlyFresh(Filter):
    """Keeps the answers that the policy gave in this step. What data parts added only served to compare with."""

    refill = False
    rounds = 1

    def __call__(self, batch: Batch) -> Tensor:
        return batch.fresh()
