"""Rewards from which the distance to a reference is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class RegularizedReward(Advantage):
    r"""Reward minus the log-ratio to a reference, centred on the group: KL-regularized reinforcement learning (P3O).

    .. math::  A_i = r_i - \bar r_{g(i)}, \qquad r_i = R_i - \beta \sum_t \log\frac{\pi_{old}(y_{i,t})}{\pi_{ref}(y_{i,t})}

    Rewards and log-ratios are centred apart, so that a constant in the rewards of a group cancels before anything is rounded.

    Fields:
        beta: larger keeps the policy nearer to the reference. At 0 no reference is needed.
        reference: its name.
        leave_one_out: centre on the siblings only: RLOO with the distance inside the reward.
    """

    ranges: ClassVar = {"beta": "[0, inf)"}

    beta: float = 0.05
    reference: str = "start"
    leave_one_out: bool = False

    def needs(self) -> frozenset[str]:
        moved = {f"reference.{self.reference}.logp", "proximal.logp"} if self.beta else set()
        return frozenset({"group", *moved})

    def __call__(self, batch: Batch) -> Tensor:
        stats = batch.group_stats(batch.reward)
        centred = (batch.reward - stats.mean).masked_fill(stats.constant, 0.0)
        if not self.beta:
            return batch.per_decision(self._of_siblings(centred, stats.size))
        if batch.proximal is None or self.reference not in batch.reference:
            found = ", ".join(batch.reference) or "no reference"
            raise MethodError(f"RegularizedReward compares with {self.reference!r} before the step; this batch has {found}.")
        gap = batch.proximal.logp - batch.reference[self.reference].logp
        moved = torch.where(gap.isfinite() & (batch.sampled > 0), gap, 0.0).sum(1)
        centred = centred - self.beta * (moved - batch.group_stats(moved).mean)
        return batch.per_decision(self._of_siblings(centred, stats.size))

    def _of_siblings(self, centred: Tensor, size: Tensor) -> Tensor:
        return centred * size / (size - 1).clamp_min(1) if self.leave_one_out else centred
