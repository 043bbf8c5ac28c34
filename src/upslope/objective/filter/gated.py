"""Groups that a demonstration takes the place of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class Gated(Filter):
    """Drops the rows to which a gate gives no weight (HPT): they are in no mean and no denominator.

    Their group keeps its place in the step's updates, where its demonstration is learned from. Without a gate all rows stay.
    """

    refill = False
    rounds = 1

    def __call__(self, batch: Batch) -> Tensor:
        gate = batch.signal.get("gate")
        return torch.ones(batch.rows, dtype=torch.bool, device=batch.sampled.device) if gate is None else gate != 0
