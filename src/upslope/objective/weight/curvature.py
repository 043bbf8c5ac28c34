"""Decisions whose own step would lead too far are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.objective.functional.curvature import ObjectiveChange, PolicyShift
from upslope.types import Batch


@dataclass(frozen=True)
class TrustToken(Weight):
    r"""Keeps the decisions whose planned step stays in a trust region (CAPO): :math:`-fall < m_H < rise` and :math:`m_F < shift`.

    :math:`m_H` is the predicted change of the decision's objective (`ObjectiveChange`), :math:`m_F` how far the policy would move
    (`PolicyShift`); both are of the current policy and of a step of plain gradient ascent in the head's weights. What is dropped is
    in no denominator. Costs a forward pass without gradient for each update.

    Fields:
        lr: of the planned step; the run's own.
        rise: smaller drops decisions whose step promises more than the model can be trusted with.
        fall: how far the objective may be predicted to fall; 0 keeps only what is predicted to rise.
        shift: smaller drops decisions that would move the policy further.
        quantile: below 1, bounds are taken from each update instead: this quantile of :math:`|m_H|` and of :math:`m_F`, so that
            between this share and 1 - 2 (1 - quantile) of the decisions are kept. For models on which no bounds are known.
        fisher: see `PolicyShift`.
    """

    scope = "update"
    ranges: ClassVar = {"lr": "[0, inf)"}

    lr: float = 1.5e-5
    rise: float = 1e-2
    fall: float = 1e-2
    shift: float = 1e-4
    quantile: float = 1.0
    fisher: Literal["empirical", "exact"] = "empirical"

    def __post_init__(self) -> None:
        for name in ("rise", "shift"):
            if not getattr(self, name) > 0:
                raise MethodError(f"TrustToken.{name} is {getattr(self, name):g}; it is above 0 (inf: no bound).")
        if not self.fall >= 0 or not 0 < self.quantile <= 1:
            raise MethodError(f"TrustToken has fall={self.fall:g}, quantile={self.quantile:g}; the first is at least 0, the second "
                              "above 0 and at most 1.")  # fmt: skip

    def _on(self) -> bool:
        return self.quantile < 1 or not all(map(math.isinf, (self.rise, self.fall, self.shift)))

    def probes(self) -> tuple[Any, ...]:
        return (ObjectiveChange(self.lr), PolicyShift(self.lr, self.fisher)) if self._on() else ()

    def needs(self) -> frozenset[str]:
        return frozenset(f"current.{probe.name}" for probe in self.probes())

    def counts_dropped(self) -> bool:
        return False

    def __call__(self, batch: Batch) -> Tensor:
        if not self._on():
            return torch.ones_like(batch.sampled)
        if batch.current is None:
            raise MethodError("TrustToken looks at the current policy before the update is cut, and this batch has not got it.")
        change, shift = batch.current[ObjectiveChange.name], batch.current[PolicyShift.name]
        if self.quantile < 1:
            kept = (change.abs() <= self._bound(change.abs(), batch)) & (shift <= self._bound(shift, batch))
        else:
            kept = (change < self.rise) & ((change > -self.fall) | (change == 0)) & (shift < self.shift)
        return kept.to(batch.sampled.dtype)

    def _bound(self, column: Tensor, batch: Batch) -> Tensor:
        values = column[(batch.sampled > 0) & column.isfinite()]
        return values.quantile(self.quantile) if len(values) else column.new_tensor(math.inf)
