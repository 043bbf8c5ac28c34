"""Answers that others have taken the place of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class Replaced(Filter):
    """Drops the rows that a data part marked in ``signal["replaced"]``: they are in no mean and no denominator."""

    refill = False
    rounds = 1

    def __call__(self, batch: Batch) -> Tensor:
        replaced = batch.signal.get("replaced")
        return torch.ones(batch.rows, dtype=torch.bool, device=batch.sampled.device) if replaced is None else replaced == 0
