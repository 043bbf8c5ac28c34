"""Advantages of a group with a reference answer in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.baseline import GroupBaseline
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class AnchoredBaseline(Advantage):
    r"""Sampled answers are compared among themselves; the reference gets a multiple of the best of them (TempSamp-R1).

    .. math::  A_i = \frac{r_i - \bar r}{s + \epsilon} \text{ over the samples}, \qquad A_{reference} = anchor \cdot \max_i A_i

    Where all samples earn the same, nothing is learned from the reference either. Without references it is GRPO's advantage.

    Fields:
        anchor: above 1 pulls towards the reference more than towards the best sample; 0 ignores it.
        ddof, eps: as in `GroupBaseline`.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    anchor: float = 1.2
    ddof: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.anchor >= 0:
            raise MethodError(f"AnchoredBaseline.anchor is {self.anchor}; it must be at least 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        fresh = batch.fresh()
        # One decision per row is enough to compare rows.
        samples = batch.replace(sampled=torch.ones_like(batch.sampled[:, :1])).take_rows(fresh)
        own = GroupBaseline(ddof=self.ddof, eps=self.eps)(samples).squeeze(1)
        index, groups = batch.group_index()
        best = torch.full((groups,), -torch.inf, dtype=own.dtype, device=own.device)
        best = best.scatter_reduce_(0, index[fresh], own, "amax")
        reference = torch.where(best.isfinite(), self.anchor * best, 0.0)[index]
        return batch.per_decision(reference.index_put((fresh,), own))
