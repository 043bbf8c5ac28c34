"""More answers vote than learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class SomeAnswers(Filter):
    """Keeps a share of each group, drawn by chance, after rewards that looked at all of it (TTRL).

    Fields:
        share: of the answers, rounded up. Smaller spends more samples on what is right and fewer on learning it; 1 is off.
    """

    refill = False
    rounds = 1
    ranges: ClassVar = {"share": "(0, 1]"}

    share: float = 0.5

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "key"})

    def __call__(self, batch: Batch) -> Tensor:
        keep = torch.ones(batch.rows, dtype=torch.bool, device=batch.sampled.device)
        if self.share == 1:
            return keep
        chance, fresh = batch.uniform(self)[:, 0], batch.fresh()
        for name in torch.unique(batch.group[fresh]):
            members = ((batch.group == name) & fresh).nonzero().squeeze(1)
            order = chance[members].argsort()
            keep[members[order[math.ceil(self.share * len(members)) :]]] = False
        return keep
