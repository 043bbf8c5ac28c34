"""Which decisions matter?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class TopEntropy(Weight):
    r"""Only the most uncertain decisions of the update: :math:`1[H_t \ge \tau]`, :math:`\tau` the (1 - fraction)-quantile of H.

    Ties at the threshold are all kept, so at least one decision is.

    Fields:
        fraction: share of decisions that learn. 1 keeps all.
        denominator: ``"selected"`` averages over the kept decisions, ``"all"`` over every sampled one.
    """

    scope = "update"

    fraction: float = 0.2
    denominator: Literal["selected", "all"] = "selected"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise MethodError(f"TopEntropy.fraction is {self.fraction}; it is a share above 0 and at most 1.")

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def counts_dropped(self) -> bool:
        return self.denominator == "all"

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.entropy is None:
            raise MethodError("TopEntropy needs the entropy of the proximal policy, and this batch has none.")
        entropy = batch.proximal.entropy
        # As many as lie at or above the linearly interpolated quantile; the small number undoes the rounding of e.g. 0.3 * 10.
        return keep_top(entropy, batch, lambda count: 1 + math.floor(self.fraction * (count - 1) + 1e-9))


def keep_top(score: Tensor, batch: Batch, how_many: Callable[[int], int]) -> Tensor:
    """1 where a sampled decision's score is among the highest, ties at the threshold included; of no decisions, 1 everywhere.

    Args:
        how_many: of a number of sampled decisions are kept.
    """
    values = score[(batch.sampled > 0) & score.isfinite()]
    if not len(values):
        return torch.ones_like(score)
    return (score >= values.topk(how_many(len(values))).values[-1]).to(score.dtype)
