"""Answers that leave the policy undecided count less (SRFT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class CertaintyWeight(Weight):
    r"""Each row times :math:`scale \cdot e^{-\bar H_i}`, with :math:`\bar H_i` its mean entropy at the step's beginning.

    Imitated so, a demonstration far from what the policy knows does not tear it away from there.

    Fields:
        scale: the weight of a row about which the policy has no doubt.
    """

    scope = "update"
    ranges: ClassVar = {"scale": "[0, inf)"}

    scale: float = 0.5

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.entropy is None:
            raise MethodError("CertaintyWeight needs the entropy at the step's beginning, and this batch has none.")
        certainty = (-batch.row_mean(batch.proximal.entropy)).exp()
        return (self.scale * certainty).unsqueeze(1).expand_as(batch.sampled)
