"""Good outcomes count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.objective.ratio import LOG_LIMIT
from upslope.types import Batch, Scope


@dataclass(frozen=True)
class AdvantageWeight(Weight):
    r"""Weighs each decision by its own advantage: :math:`e^{A / temperature}` (RED-Weight).

    Fields:
        temperature: smaller learns almost only from what went well; infinite weighs all alike.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise MethodError(f"AdvantageWeight.temperature is {self.temperature:g}; it is above 0.")

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("AdvantageWeight needs advantages, and this batch has none yet.")
        return (batch.advantage / self.temperature).clamp(-LOG_LIMIT, LOG_LIMIT).exp()


@dataclass(frozen=True)
class OnlyDecided(Weight):
    """Decisions of advantage zero count in no mean: their rows are there to be measured, not to learn from (KTO)."""

    scope: ClassVar[Scope] = "update"

    def counts_dropped(self) -> bool:
        return False

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("OnlyDecided needs advantages, and this batch has none yet.")
        return (batch.advantage != 0).to(batch.sampled.dtype)
