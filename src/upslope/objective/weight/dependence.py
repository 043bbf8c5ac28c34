"""Decisions that depend on the input are those that learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.objective.functional.dependence import dependence, dependence_needs
from upslope.types import Batch


@dataclass(frozen=True)
class TopDependence(Weight):
    r"""The :math:`\lceil fraction \cdot T_i \rceil` decisions of each row that depend most on what was shown (`dependence`; VPPO).

    Dropped decisions still count in the denominators. Of equally dependent ones the earlier are kept.

    Fields:
        fraction: share of each row that learns. 1 keeps all.
        reference: who does not see it.
    """

    scope = "update"

    fraction: float = 0.4
    reference: str = "blind"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise MethodError(f"TopDependence.fraction is {self.fraction:g}; it is a share above 0 and at most 1.")

    def needs(self) -> frozenset[str]:
        return dependence_needs(self.reference) if self.fraction < 1 else frozenset()

    def __call__(self, batch: Batch) -> Tensor:
        if self.fraction == 1:
            return torch.ones_like(batch.sampled)
        score = dependence(batch, self.reference).masked_fill(batch.sampled == 0, -torch.inf)
        order = score.argsort(dim=1, descending=True, stable=True)
        # The small number undoes the rounding of e.g. 0.1 * 30.
        kept = (self.fraction * batch.lengths() - 1e-9).ceil().unsqueeze(1)
        rank = torch.arange(score.shape[1], device=score.device).expand_as(score)
        return torch.zeros_like(batch.sampled).scatter_(1, order, (rank < kept).to(batch.sampled.dtype)) * batch.sampled
