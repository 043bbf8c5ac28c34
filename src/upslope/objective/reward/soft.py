"""Rewards bent around a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Reward
from upslope.types import Batch


@dataclass(frozen=True)
class SoftReward(Reward):
    r"""Flat above a threshold, steep below it (TempSamp-R1), so that one perfect answer does not make all others look bad.

    .. math::
        \tilde r = \tau + a_1\ln(r-\tau+1) \text{ if } r \ge \tau, \qquad
        \tilde r = \tau - \frac{e^{a_2(\tau-r)}-1}{e^{a_2}-1} \text{ otherwise}

    Continuous and increasing.

    Fields:
        threshold: tau. Rewards above it differ little after the transform.
        flat: :math:`a_1`, the slope just above the threshold. Smaller makes good answers more alike.
        steep: :math:`a_2`. Larger sets bad answers further apart and near misses closer together.
    """

    threshold: float = 0.8
    flat: float = 0.01
    steep: float = 1.0

    def __post_init__(self) -> None:
        if not self.flat >= 0 or not self.steep > 0:
            raise MethodError(f"SoftReward has flat={self.flat} and steep={self.steep}; at least 0, and above 0.")

    def transform(self, reward: Tensor) -> Tensor:
        """The soft reward of each reward; equal ones stay equal to the last bit."""
        value, where = torch.unique(reward, return_inverse=True)  # vector and scalar code may round the same number differently
        above = self.threshold + self.flat * torch.log1p((value - self.threshold).clamp_min(0))
        below = self.threshold - torch.expm1(self.steep * (self.threshold - value).clamp_min(0)) / math.expm1(self.steep)
        return torch.where(value >= self.threshold, above, below)[where]

    def __call__(self, batch: Batch) -> Batch:
        return batch.replace(reward=self.transform(batch.reward))
