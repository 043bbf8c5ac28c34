"""Not too far from what was sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Regularizer
from upslope.objective.regularize.kl import Estimator, kl_estimate
from upslope.types import Batch


@dataclass(frozen=True)
class BehaviorKL(Regularizer):
    """Distance to the policy that sampled, estimated on its own decisions. It acts where the data serve several updates.

    Fields:
        weight: larger keeps the updates of a step nearer together.
        estimator: see `kl_estimate`.
        limit: the largest value one decision may have; it has no gradient beyond.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "limit": "(0, inf]"}

    weight: float = 0.01
    estimator: Estimator = "k3"
    limit: float = 10.0

    def __call__(self, batch: Batch) -> Tensor:
        if not self.weight:
            return torch.zeros_like(batch.sampled)
        assert batch.current is not None
        return self.weight * kl_estimate(batch.current.logp, batch.behavior.logp, self.estimator).clamp(-self.limit, self.limit)
