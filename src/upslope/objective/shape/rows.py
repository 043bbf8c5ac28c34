"""Advantages of answers, rescaled over the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.types import Batch


@dataclass(frozen=True)
class WhitenRows(Shape):
    r"""Mean zero and spread one over the answers of the step, each counted once whatever its length (SPO).

    .. math::  A_{it} \leftarrow \frac{A_{it} - \mathrm{mean}_j \bar A_j}{\mathrm{std}_j \bar A_j + \epsilon}

    :math:`\bar A_j` is the mean over row j, and rows without a decision are not counted. Fewer than two rows are left as they are;
    equal ones become exactly zero.

    Fields:
        eps: added to the spread.
    """

    scope = "step"
    ranges: ClassVar = {"eps": "[0, inf)"}

    eps: float = 1e-8

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("whitening needs advantages, and this batch has none yet.")
        on = batch.sampled > 0
        advantage = torch.where(on, batch.advantage, 0.0)
        # Relative to the row's first decision, so that the mean of equal numbers is that number to the last bit.
        first = advantage.gather(1, on.long().argmax(1, keepdim=True)) if on.shape[1] else advantage.sum(1, keepdim=True)
        rows = (first.squeeze(1) + batch.row_mean(torch.where(on, advantage - first, 0.0)))[batch.lengths() > 0]
        if len(rows) < 2:
            return advantage
        if rows.min() == rows.max():
            return torch.zeros_like(advantage)
        return torch.where(on, (advantage - rows.mean()) / (rows.std() + self.eps), 0.0)
