"""Answers that depend more on the input count more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.objective.functional.dependence import dependence, dependence_needs
from upslope.types import Batch


@dataclass(frozen=True)
class DependenceFactor(Shape):
    r"""Scales each row's advantage by how much it depends on what was shown, with a mean factor of 1 (VPPO).

    .. math::  A_i \leftarrow [\,b + n_i (B - b)\,] A_i, \qquad  n_i = \frac{s_i - \min s}{\max s - \min s}, \qquad
               B = b + \frac{1 - b}{\bar n + 10^{-8}}

    with :math:`s_i` the row's mean `dependence` and the rest over the update's rows; b is ``least``. Rows that hardly differ
    (a range below 1e-6) stay as they are.

    Fields:
        least: factor of the least dependent row. 1 is off; lower ones prefer dependent rows more.
        reference: who does not see it.
    """

    scope = "update"

    least: float = 0.9
    reference: str = "blind"

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise MethodError(f"DependenceFactor.least is {self.least:g}; it is from 0 to 1.")

    def needs(self) -> frozenset[str]:
        return dependence_needs(self.reference) if self.least < 1 else frozenset()

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("DependenceFactor needs advantages, and this batch has none yet.")
        if self.least == 1:
            return batch.advantage
        return batch.advantage * self.factor(batch).unsqueeze(1)

    def factor(self, batch: Batch) -> Tensor:
        """Of each row ``[N]``; 1 for rows without a decision."""
        score, there = batch.row_mean(dependence(batch, self.reference)), batch.lengths() > 0
        ones = torch.ones_like(score)
        if not there.any() or score[there].max() - score[there].min() < 1e-6:
            return ones
        place = (score - score[there].min()) / (score[there].max() - score[there].min())
        most = self.least + (1 - self.least) / (place[there].mean() + 1e-8)
        return torch.where(there, self.least + place * (most - self.least), ones)
