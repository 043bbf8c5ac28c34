"""A divergence that is free up to a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.ratio import LOG_LIMIT
from upslope.objective.regularize.kl import kl_estimate
from upslope.types import Batch


@dataclass(frozen=True)
class HingeKL(Regularizer):
    r"""The square of what the update's divergence has above a threshold, more of it where the policy is sure of itself (SAFE).

    .. math::  weight \cdot g \cdot \max(K - threshold,\ 0)^2, \qquad  g = \max\big(0.5,\ entropy\_floor / (H + 0.1)\big)

    K is the mean of :math:`\log\pi_\theta - \log\pi_{ref}` over the update's decisions and H their mean entropy before the step.

    Fields:
        weight: larger comes back faster once above the threshold.
        threshold: divergence per decision that costs nothing. Controllers move it.
        entropy_floor: entropies below about this amplify the penalty; 0 halves it always.
        gradient: what stands for the gradient of K: ``"k2"`` has it on fresh samples, ``"k1"`` differentiates the estimate itself,
            which on fresh samples is noise around zero.
        detached: the penalty is a number without gradient, of a divergence smoothed over steps, as in the released code.
        smoothing, previous: of that divergence: its memory, and what it was before this step. Only where ``detached``.
        reference: who is compared with.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 0.1
    threshold: float = 0.3
    entropy_floor: float = 2.0
    gradient: Literal["k1", "k2"] = "k2"
    detached: bool = False
    smoothing: float = 0.9
    previous: float = 0.0
    reference: str = "start"

    def __post_init__(self) -> None:
        if self.weight < 0 or self.entropy_floor < 0 or not 0 <= self.smoothing < 1:
            raise MethodError(f"HingeKL has weight={self.weight:g}, entropy_floor={self.entropy_floor:g} and smoothing="
                              f"{self.smoothing:g}; the first two are at least 0, the last from 0 to below 1.")  # fmt: skip

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.reference}.logp"}) if self.weight else frozenset()

    def prepare_needs(self) -> frozenset[str]:
        return self.needs() | {"current.logp", "proximal.entropy"} if self.weight else frozenset()

    def prepares(self) -> bool:
        return self.weight > 0

    def prepare(self, batch: Batch) -> Tensor:
        """The derivative of the penalty in K, for each row ``[N]``."""
        if batch.current is None or batch.proximal is None or batch.proximal.entropy is None:
            raise MethodError("HingeKL looks at the whole update's current divergence and entropy, which this batch lacks.")
        # What is infinite or NaN says nothing of how far the others are.
        known = ((self._logp(batch) - batch.current.logp).abs() <= LOG_LIMIT) & (batch.sampled > 0)
        apart = self._divergence(batch)[known].mean() if known.any() else batch.sampled.new_zeros(())
        entropy = (batch.proximal.entropy * batch.sampled).sum() / batch.sampled.sum().clamp_min(1)
        gate = (self.entropy_floor / (entropy + 0.1)).clamp_min(0.5)
        return (2 * self.weight * gate * (apart - self.threshold).clamp_min(0)).detach().expand(batch.rows)

    def __call__(self, batch: Batch) -> Tensor:
        if not self.weight:
            return torch.zeros_like(batch.sampled)
        assert batch.current is not None
        slope = batch.prepared[self].unsqueeze(1)
        # The mean of this over the update is the penalty: weight g (K - threshold)^2 is half the slope times K - threshold.
        value = slope / 2 * (self._divergence(batch).detach() - self.threshold)
        if self.detached:
            return value
        carrier = kl_estimate(batch.current.logp, self._logp(batch), self.gradient)
        return value + slope * (carrier - carrier.detach())

    def _logp(self, batch: Batch) -> Tensor:
        if self.reference not in batch.reference:
            raise MethodError(
                f"HingeKL compares with {self.reference!r}; this batch has {', '.join(batch.reference) or 'no reference'}."
            )
        return batch.reference[self.reference].logp

    def _divergence(self, batch: Batch) -> Tensor:
        """Per decision; its mean is K."""
        assert batch.current is not None
        now = kl_estimate(batch.current.logp, self._logp(batch), "k1")
        return self.smoothing * self.previous + (1 - self.smoothing) * now if self.detached else now
