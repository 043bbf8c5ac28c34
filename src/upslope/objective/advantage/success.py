"""Right or wrong, and how often the group was right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class SuccessRate(Advantage):
    r"""Right (1) or wrong (0) minus the group's share of right answers: :math:`A_i = 1[R_i > threshold] - p`.

    Writes ``signal["success"]``, :math:`p` kept away from 0 and 1. A group all right or all wrong gets exactly zero.

    Fields:
        threshold: an answer that earned more is right.
        margin: :math:`p` in the signal lies within ``[margin, 1 - margin]``; smaller lets nearly solved tasks weigh more.
    """

    judges_by: ClassVar[str] = "threshold"

    threshold: float = 0.5
    margin: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.margin <= 0.5:
            raise MethodError(f"SuccessRate.margin is {self.margin:g}; it lies above 0 and at most at 0.5.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        right = self._right(batch)
        stats = batch.group_stats(right)
        return batch.per_decision((right - stats.mean).masked_fill(stats.constant, 0.0))

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        rate = batch.group_stats(self._right(batch)).mean.clamp(self.margin, 1 - self.margin)
        return {"success": rate.unsqueeze(1).expand_as(batch.sampled).contiguous()}

    def _right(self, batch: Batch) -> Tensor:
        return (batch.reward > self.threshold).to(batch.reward.dtype)
