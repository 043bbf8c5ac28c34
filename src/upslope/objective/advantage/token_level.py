"""A baseline in which every token of the group counts, not every answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.baseline import GroupBaseline
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class TokenLevelBaseline(Advantage):
    r"""Reward minus the mean over all *tokens* of the group, each carrying its answer's reward (HAPO).

    .. math::  A_i = \frac{R_i - m}{s + \epsilon}, \qquad m = \frac{\sum_i T_i R_i}{\sum_i T_i}, \qquad
               s^2 = \frac{\sum_i T_i (R_i - m)^2}{\sum_i T_i}

    The advantages of a group's tokens then sum to zero, so that under a mean over tokens long answers do not tilt the update.

    Fields:
        limit: a group in which any :math:`|A|` reaches it (one short answer among long ones) uses the baseline per answer instead.
            Infinite: never.
        ddof: of the spread of that baseline per answer.
        eps: added to the divisor.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    limit: float = 5.0
    ddof: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise MethodError(f"TokenLevelBaseline.limit is {self.limit:g}; it is above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        lengths, reward = batch.lengths(), batch.reward
        index, groups = batch.group_index()

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=column.dtype, device=column.device).index_add_(0, index, column)[index]

        tokens = total(lengths).clamp_min(1)
        centred = reward - total(lengths * reward) / tokens
        spread = (total(lengths * centred.square()) / tokens).sqrt()
        advantage = centred / (spread + self.eps)
        if math.isfinite(self.limit):
            far = total(((advantage.abs() >= self.limit) & (lengths > 0)).to(reward.dtype)) > 0
            per_answer = batch.row_mean(GroupBaseline(ddof=self.ddof, eps=self.eps)(batch))
            advantage = torch.where(far, per_answer, advantage)
        return batch.per_decision(advantage.masked_fill(self._constant(batch, index, groups), 0.0))

    def _constant(self, batch: Batch, index: Tensor, groups: int) -> Tensor:
        """Rows whose group earned exactly the same on all its tokens ``[N]``."""
        there = batch.lengths() > 0
        start = torch.full((groups,), torch.inf, dtype=batch.reward.dtype, device=batch.reward.device)
        low = start.scatter_reduce(0, index, torch.where(there, batch.reward, torch.inf), "amin")
        high = (-start).scatter_reduce(0, index, torch.where(there, batch.reward, -torch.inf), "amax")
        return (low >= high)[index]
