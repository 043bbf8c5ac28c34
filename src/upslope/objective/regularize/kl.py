"""Which further terms?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.ratio import LOG_LIMIT
from upslope.types import Batch

Estimator = Literal["k1", "k2", "k3", "k3+"]


def kl_estimate(logp: Tensor, other: Tensor, estimator: Estimator) -> Tensor:
    r"""Per-decision estimate of KL(policy || other) from samples of the policy, with :math:`x = \log\pi_{other} - \log\pi`.

    ``k1`` is :math:`-x` (unbiased, may be negative), ``k2`` :math:`x^2/2`, ``k3`` :math:`e^x - x - 1` (unbiased, never negative).
    As a loss only k2 has the gradient of the divergence on fresh samples; ``k3+`` has k3's value and k2's gradient.
    """
    difference = other.detach() - logp
    x = torch.where(difference.isnan(), 0.0, difference).clamp(-LOG_LIMIT, LOG_LIMIT)
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return x.square() / 2
    k3 = x.exp() - x - 1
    if estimator == "k3":
        return k3
    k2 = x.square() / 2
    return k3.detach() + k2 - k2.detach()


@dataclass(frozen=True)
class ReferenceKL(Regularizer):
    """Distance to a reference policy, estimated on the sampled decisions.

    Fields:
        weight: larger keeps the policy nearer to the reference. At 0 the reference is not computed at all.
        estimator: see `kl_estimate`.
        reference: ``"start"`` is the policy as the run began.
        limit: the largest value one decision may have; it has no gradient beyond.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "limit": "(0, inf]"}

    weight: float = 0.04
    estimator: Estimator = "k3"
    reference: str = "start"
    limit: float = 10.0

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.reference}.logp"}) if self.weight else frozenset()

    def __call__(self, batch: Batch) -> Tensor:
        if not self.weight:
            return torch.zeros_like(batch.sampled)
        if self.reference not in batch.reference:
            raise MethodError(
                f"the KL term compares with {self.reference!r}; this batch has {sorted(batch.reference) or 'no reference'}."
            )
        assert batch.current is not None
        value = kl_estimate(batch.current.logp, batch.reference[self.reference].logp, self.estimator)
        return self.weight * (value.clamp(-self.limit, self.limit) if math.isfinite(self.limit) else value)


@dataclass(frozen=True)
class EntropyBonus(Regularizer):
    """Reward for staying undecided: minus the entropy of the current policy.

    Fields:
        weight: larger explores more and settles later.
    """

    ranges: ClassVar = {"weight": "(-inf, inf)"}

    weight: float = 0.01

    def needs(self) -> frozenset[str]:
        return frozenset({"current.entropy"}) if self.weight else frozenset()

    def __call__(self, batch: Batch) -> Tensor:
        if not self.weight:
            return torch.zeros_like(batch.sampled)
        if batch.current is None or batch.current.entropy is None:
            raise MethodError("an entropy bonus needs the current entropy, and this batch has none.")
        return -self.weight * batch.current.entropy
