"""Credit for what a step's rows did to the next step's reward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class Attribution(Advantage):
    r"""The progress since, shared out by the advantages that the rows once had (PIPO).

    .. math::  C_i = \mathrm{clip}\Big(\frac{G A_i}{\sum_{j\in g(i)} |A_j| + \epsilon}\;\phi(\xi),\ \pm limit\Big)

    Reads the rows' own ``advantage`` and what `PreviousStep` wrote. Within a group the :math:`|C_i|` sum to :math:`G|\phi|`,
    as long as no bound acts.

    Fields:
        by: ``"group"`` as above; ``"token"`` multiplies each decision's own advantage by the progress, for methods with a value
            function.
        limit: bound on each coefficient.
        eps: added to the divisor.
    """

    ranges: ClassVar = {"eps": "[0, inf)"}

    by: Literal["group", "token"] = "group"
    limit: float = 10.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise MethodError(f"Attribution.limit is {self.limit}; it must be above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None or "progress" not in batch.signal:
            raise MethodError("Attribution judges rows of an earlier step: it needs their advantage and data=PreviousStep().")
        credit = batch.advantage * batch.sampled
        if self.by == "group":
            row = batch.row_mean(credit)
            index, groups = batch.group_index()
            total = torch.zeros(groups, dtype=row.dtype, device=row.device).index_add_(0, index, row.abs())[index]
            credit = batch.per_decision(row * batch.group_stats(row).size / (total + self.eps))
        credit = credit * batch.signal["progress"].unsqueeze(1)
        bounded = credit.clamp(-self.limit, self.limit) if math.isfinite(self.limit) else credit
        return bounded * batch.signal["progress_scale"].unsqueeze(1)
