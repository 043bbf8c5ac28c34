"""Which tokens are both uncertain and impactful (D3S)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.objective.weight.selection import keep_top
from upslope.types import Batch


@dataclass(frozen=True)
class TopAdvantageEntropy(Weight):
    r"""Only the decisions of the update with the largest :math:`|A_t| H_t`.

    Ties at the threshold are all kept, so at least one decision is.

    Fields:
        fraction: share of decisions that learn. Smaller learns from fewer and overfits sooner; 1 keeps all.
        denominator: ``"selected"`` averages over the kept decisions, ``"all"`` over every sampled one.
    """

    scope = "update"

    fraction: float = 0.2
    denominator: Literal["selected", "all"] = "selected"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise MethodError(f"TopAdvantageEntropy.fraction is {self.fraction}; it is a share above 0 and at most 1.")

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def counts_dropped(self) -> bool:
        return self.denominator == "all"

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.entropy is None or batch.advantage is None:
            raise MethodError("TopAdvantageEntropy needs advantages and the entropy of the proximal policy; this batch lacks one.")
        score = batch.advantage.abs() * batch.proximal.entropy
        # The small number undoes the rounding of e.g. 0.3 * 10.
        return keep_top(score, batch, lambda count: max(1, math.floor(self.fraction * count + 1e-9)))
