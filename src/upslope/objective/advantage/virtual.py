"""A group that is compared with samples nobody drew (NGRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class VirtualSamples(Advantage):
    r"""The group's baseline and spread as if it had further samples of the best reward (NGRPO).

    .. math::  A_i = \frac{R_i - \bar R'}{s' + \epsilon},\qquad
               \bar R', s' \text{ of } \{R_1, \dots, R_G\} \cup \{best\}^{virtual}

    A group that is all wrong gets one common negative advantage, :math:`-1/\sqrt{G+1}` for one virtual sample; one that is all
    right gets exactly zero.

    Fields:
        virtual: how many are added. More push harder on wrong answers and reward right ones less; 0 is GRPO.
        best: their reward, the most a sample can earn.
        ddof: 1 is the unbiased spread that libraries use, 0 the population's.
        eps: added to the divisor.
        alone: what a group of one gets: ``"compared"`` with the virtual samples like any other; ``"reward"`` its own reward, as
            in the released code, which adds no virtual sample there.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    judges_by: ClassVar[str] = "best"

    virtual: int = 1
    best: float = 1.0
    ddof: int = 1
    eps: float = 1e-6
    alone: Literal["compared", "reward"] = "compared"

    def __post_init__(self) -> None:
        if self.virtual < 0:
            raise MethodError(f"VirtualSamples.virtual is {self.virtual}; it is a number of samples, 0 or more.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        stats = batch.group_stats(batch.reward, self.ddof)
        index, groups = batch.group_index()
        size = stats.size + self.virtual
        mean = stats.mean + self.virtual / size * (self.best - stats.mean)
        own = torch.zeros(groups, dtype=mean.dtype, device=mean.device).index_add_(0, index, (batch.reward - mean) ** 2)[index]
        spread = ((own + self.virtual * (self.best - mean) ** 2) / (size - self.ddof).clamp_min(1)).sqrt()
        # Decided on the rewards themselves: a mean of equal floats can differ from them in the last bit.
        silent = stats.constant & (batch.reward == self.best) if self.virtual else stats.constant
        advantage = ((batch.reward - mean) / (spread + self.eps)).masked_fill(silent, 0.0)
        if self.alone == "reward":
            advantage = torch.where(stats.size == 1, batch.reward / (1 + self.eps), advantage)
        return batch.per_decision(advantage)
