"""A price for uncertain answers (GTPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.ratio import carrier
from upslope.objective.weight.conflict import row_entropy
from upslope.types import Batch


@dataclass(frozen=True)
class AnswerEntropyPenalty(Regularizer):
    r"""Each answer's advantage is lowered by its mean entropy: :math:`weight \cdot \langle H\rangle_i \lambda_t r_t` in the loss.

    With the surrogate's :math:`-A_i \lambda_t r_t` this is :math:`-(A_i - weight \langle H\rangle_i)\,\lambda_t r_t`, where
    :math:`\lambda` is the product of the method's weights, :math:`r` has the value one and the entropy carries no gradient. It
    acts on answers without any advantage too.

    Fields:
        weight: larger moves probability away from uncertain answers faster; 0 is off.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 0.1

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise MethodError(f"AnswerEntropyPenalty.weight is {self.weight}; it is 0 or above.")

    def prepare_needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"}) if self.weight else frozenset()

    def prepares(self) -> bool:
        return self.weight > 0

    def prepare(self, batch: Batch) -> Tensor:
        """Each row's mean entropy ``[N]``: a slice of single decisions could not take it."""
        return row_entropy(batch, batch.proximal)

    def __call__(self, batch: Batch) -> Tensor:
        if not self.weight:
            return torch.zeros_like(batch.sampled)
        entropy = batch.per_decision(batch.prepared[self])
        return self.weight * entropy * batch.signal["weight"] * carrier(batch).exp()
