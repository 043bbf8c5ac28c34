"""Staying near the data: regularisers of policies that learn from a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Regularizer
from upslope.objective.surrogate.improvement import distance_to
from upslope.types import Batch


@dataclass(frozen=True)
class TowardsData(Regularizer):
    r"""Draws the policy to the action that was recorded at the same state (TD3+BC).

    .. math::  w \, \tfrac1D \lVert \mu(s) - a \rVert^2

    Fields:
        weight: w.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1.0

    def __call__(self, batch: Batch) -> Tensor:
        return self.weight * distance_to(batch, batch.action)
