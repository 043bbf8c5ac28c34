"""A KL penalty for the few decisions that would cost the most entropy (KL-Cov)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.functional.covariance import Source, covariance, covariance_needs, share_count
from upslope.objective.ratio import log_ratio
from upslope.types import Batch


@dataclass(frozen=True)
class CovarianceKL(Regularizer):
    r"""Distance to the policy before the step, on the decisions of highest covariance only.

    .. math::  weight \cdot |\log\pi_\theta - \log\pi_{old}|
               \text{ on the } n = \max(1, \lfloor fraction \cdot \#\rfloor) \text{ decisions of largest } c_t

    :math:`c_t` is `covariance`. Only positive covariances are taken: the others do not lower the entropy, and an update without
    any signal has none. Equal ones at the threshold are all taken, so that the order of rows does not matter.

    Fields:
        fraction: share of the update's decisions that are held. Larger keeps more entropy and learns more slowly; 0 is off.
        weight: how strongly they are held. In a step's first update the policy has not moved, and the term has no gradient.
        source: whose log-probabilities the covariance takes: ``"current"`` (the paper's) costs a pass from the second update
            of a step on, ``"proximal"`` does not.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    fraction: float = 2e-3
    weight: float = 1.0
    source: Source = "current"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise MethodError(f"CovarianceKL.fraction is {self.fraction}; it is a share from 0 to 1.")

    def prepare_needs(self) -> frozenset[str]:
        return covariance_needs(self.source) if self.prepares() else frozenset()

    def prepares(self) -> bool:
        return self.fraction > 0 and self.weight > 0

    def prepare(self, batch: Batch) -> Tensor:
        """Which decisions are held ``[N, T]``."""
        found = covariance(batch, self.source)
        threshold = found.flatten().topk(min(share_count(batch, self.fraction), found.numel())).values[-1]
        return (found >= threshold) & (found > 0)

    def __call__(self, batch: Batch) -> Tensor:
        if not self.prepares():
            return torch.zeros_like(batch.sampled)
        return torch.where(batch.prepared[self], self.weight * log_ratio(batch).abs(), 0.0)
