"""A distance to the reference that weighs less on some rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.regularize.kl import ReferenceKL
from upslope.types import Batch


@dataclass(frozen=True)
class EasedKL(ReferenceKL):
    """`ReferenceKL`, multiplied on rows that a data part marked: what is hard may move further (CLPO).

    Fields:
        signal: name of the signal ``[N]`` that marks rows; all weigh the same where there is none.
        factor: what the distance of marked rows is multiplied with. 1 makes no difference, 0 lets them go.
    """

    ranges: ClassVar = {"factor": "[0, inf)"}

    signal: str = "hard"
    factor: float = 0.5

    def __call__(self, batch: Batch) -> Tensor:
        value = super().__call__(batch)
        marked = batch.signal.get(self.signal)
        if marked is None:
            return value
        return value * torch.where(marked > 0, self.factor, 1.0).to(value).unsqueeze(1)
