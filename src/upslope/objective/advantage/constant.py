"""The same advantage for every decision: what is there is to be imitated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class ConstantAdvantage(Advantage):
    """Every decision counts as equally good, whatever was earned: with `LogLikelihood` it is supervised learning.

    Fields:
        value: that advantage. It scales the loss; below zero it unlearns.
    """

    ranges: ClassVar = {"value": "(-inf, inf)"}

    value: float = 1.0

    def __call__(self, batch: Batch) -> Tensor:
        return self.value * batch.sampled
