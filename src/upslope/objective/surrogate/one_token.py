"""Imitation by what the policy would have said itself: rollouts of one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.functional.one_token import OneTokenSamples
from upslope.objective.surrogate.clip import advantage_of
from upslope.types import Batch


@dataclass(frozen=True)
class OneTokenRollout(Surrogate):
    r"""At each token of a demonstration K tokens are sampled from the policy, and learned from as a policy gradient (OTR).

    .. math::  L_t = -\frac{A_t}{K} \sum_{k=1}^K R(a'_k) \log\pi_\theta(a'_k|s_t), \quad a'_k \sim \pi_\theta(\cdot|s_t)^{1/\kappa},
               \quad R(a') = 1 \text{ if } a' = x_t \text{ else } wrong

    Tokens that the policy itself hardly ever says are left alone: with :math:`\kappa = 1` the mean gradient is
    :math:`-(1 - wrong)\,\nabla\pi_\theta(x_t)`, that of `LogLikelihood` times :math:`(1 - wrong)\,\pi_\theta(x_t)`. The logits are
    computed in chunks, and again in the backward pass.

    Fields:
        samples: K. More lowers the variance and costs time.
        wrong: what a token other than the demonstrated one earns. At :math:`\kappa = 1` it scales the mean gradient and otherwise
            only the variance; below 0 it drives down what was said instead.
        temperature: :math:`\kappa`. Above 1 rare tokens are sampled more often than the policy would, without correction for it.
    """

    text_only: ClassVar[bool] = True
    ranges: ClassVar = dict(OneTokenSamples.ranges)

    samples: int = 256
    wrong: float = -0.1
    temperature: float = 1.3

    def takes(self, branches: tuple[str, ...]) -> bool:
        return not branches

    def probes(self) -> tuple[Any, ...]:
        return (OneTokenSamples(self.samples, self.wrong, self.temperature),)

    def needs(self) -> frozenset[str]:
        return frozenset({f"current.{OneTokenSamples.name}"})

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        assert batch.current is not None
        column = batch.current[OneTokenSamples.name]
        return -advantage_of(batch) * torch.where(column.isfinite(), column, 0.0), {}
