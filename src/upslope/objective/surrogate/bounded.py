"""A target for the ratio instead of a clip."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, check_region
from upslope.types import Batch


@dataclass(frozen=True)
class BoundedRatio(Surrogate):
    r"""Regresses the ratio to the solution of the bounded problem with a weighted absolute error (BRRL).

    .. math::  \tau = 1 - low + (low + high)\,\sigma(\tilde A / temperature), \qquad  L = |u - \tau|\,|A|

    :math:`\tilde A` is ``signal["centred"]``, how far the outcome lies above the *median*; :math:`A`, the advantage, is a weight.
    Inside the band the slope is the policy gradient's; outside, where a clip goes flat, it leads back.

    Fields:
        low, high: the band's distance from one below and above. Wider takes larger steps per rollout. ``low=1`` drops what is
            below the median altogether (the cross-entropy method).
        temperature: 0.0001 makes the target a sign, so that all above the median go to ``1 + high``; larger ones move little
            what is near the median.
    """

    low: float = 0.2
    high: float = 0.2
    temperature: float = 1e-4

    def __post_init__(self) -> None:
        check_region(self)
        if not self.temperature > 0:
            raise MethodError(f"BoundedRatio.temperature is {self.temperature:g}; it is above 0.")

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        if "centred" not in batch.signal:
            raise MethodError(
                "BoundedRatio needs signal['centred'], the outcome minus its median, which this advantage does not write."
            )
        target = 1 - self.low + (self.low + self.high) * (batch.signal["centred"] / self.temperature).sigmoid()
        ratio = branch.value.detach()
        notes = {"clipped_high": (ratio > 1 + self.high) & (advantage > 0), "clipped_low": (ratio < 1 - self.low) & (advantage < 0)}
        return (branch.value - target.detach()).abs() * advantage.abs(), notes
