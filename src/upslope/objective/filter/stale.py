"""Rows that are too old to learn from (AsyncFlow)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class Stale(Filter):
    """Drops rows with a decision that weights of more than ``most`` steps ago drew.

    Fields:
        most: steps of learning since. Smaller is nearer to the policy and wastes more samples; infinity keeps all.
    """

    refill = False
    rounds = 1
    ranges: ClassVar = {"most": "[0, inf]"}

    most: float = 8.0

    def __call__(self, batch: Batch) -> Tensor:
        return (batch.age() <= self.most).all(1)
