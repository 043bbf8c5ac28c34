"""PPO's clip, and no gradient for a few decisions that would cost the most entropy (Clip-Cov)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.functional.covariance import Source, covariance, covariance_needs, share_count
from upslope.objective.ratio import log_ratio
from upslope.objective.surrogate.clip import advantage_of, check_region, pessimistic
from upslope.types import Batch


@dataclass(frozen=True)
class CovarianceClip(Surrogate):
    r"""Clipped ratio, without a few randomly chosen decisions of high covariance.

    .. math::  L_t = -m_t \min(r A,\ \mathrm{clip}(r, 1-low, 1+high)\,A),\qquad
               m_t = 0 \text{ on } n = \max(1, \lfloor fraction \cdot \#\rfloor) \text{ of the } t:\ above < c_t < below

    :math:`c_t` is `covariance`. What the clip holds back already is not chosen. The chosen still count in the means.

    Fields:
        fraction: share of the update's decisions that get no gradient. Larger holds the entropy up longer and learns less;
            0 is the plain clip.
        above, below: range of covariances to choose from. A lower ``above`` also takes decisions that hardly cost entropy;
            a lower ``below`` lets the most extreme ones through.
        low, high: trust region as in PPO. The paper opens it wide, so that the covariance is what limits.
        source: whose log-probabilities the covariance takes: ``"current"`` (the paper's) costs a pass from the second update
            of a step on, ``"proximal"`` does not.
    """

    fraction: float = 2e-4
    above: float = 1.0
    below: float = 5.0
    low: float = 1.0
    high: float = 1.0
    source: Source = "current"

    def __post_init__(self) -> None:
        check_region(self)
        if not 0 <= self.fraction <= 1:
            raise MethodError(f"CovarianceClip.fraction is {self.fraction}; it is a share from 0 to 1.")
        if not self.above < self.below:
            raise MethodError(f"CovarianceClip has above={self.above:g} and below={self.below:g}; no covariance lies between.")

    def prepare_needs(self) -> frozenset[str]:
        return covariance_needs(self.source) if self.fraction else frozenset()

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def prepares(self) -> bool:
        return self.fraction > 0

    def prepare(self, batch: Batch) -> Tensor:
        """Which decisions get no gradient ``[N, T]``."""
        found = covariance(batch, self.source)
        candidate = (found > self.above) & (found < self.below)
        if self.source == "current":
            ratio, advantage = log_ratio(batch).detach().exp(), advantage_of(batch)
            candidate &= ~(ratio.clamp(1 - self.low, 1 + self.high) * advantage < ratio * advantage)
        # The smallest of independent numbers are a random choice, the same however rows are ordered.
        lots = torch.where(candidate, batch.uniform(self), 2.0)
        last = lots.flatten().kthvalue(min(share_count(batch, self.fraction), lots.numel())).values
        return candidate & (lots <= last)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        free = branch.value * advantage
        bounded = branch.value.clamp(1 - self.low, 1 + self.high) * advantage
        loss, notes = pessimistic(free, bounded, advantage)
        if not self.fraction:
            return loss, notes
        chosen = batch.prepared[self]
        return torch.where(chosen, 0.0, loss), notes | {"clipped_covariance": chosen}
