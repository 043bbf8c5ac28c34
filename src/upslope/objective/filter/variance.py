"""Which rollouts spread the advantages most (D3S)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class MaxVariance(Filter):
    r"""Keeps the rows whose advantages have the largest variance: :math:`S = \arg\max_{|S| = N} \mathrm{Var}(A_S)`.

    The best set is always the k largest and the N - k smallest for some k, so trying every k on the sorted list is exact.
    Advantages keep the values they have in the full groups. Equal ones are chosen between at random.

    Fields:
        keep: share of the rows that learn, rounded up. Smaller trains on fewer, more telling rows and overfits sooner; 1 is off.
        over: the set they are chosen from: the whole step (``"batch"``, the paper's main form) or each group by itself.
    """

    late = True
    refill = False
    rounds = 1

    keep: float = 0.25
    over: Literal["batch", "group"] = "batch"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise MethodError(f"MaxVariance.keep is {self.keep}; it is a share above 0 and at most 1.")

    def needs(self) -> frozenset[str]:
        return frozenset({"key", "group"} if self.over == "group" else {"key"})

    def __call__(self, batch: Batch) -> Tensor:
        everything = torch.ones(batch.rows, dtype=torch.bool, device=batch.sampled.device)
        there = (batch.lengths() > 0).nonzero().squeeze(1)
        if self.keep == 1 or not len(there):
            return everything
        piece = batch.take_rows(there)
        sets = piece.group_index()[0] if self.over == "group" else torch.zeros_like(there)
        return (~everything).index_put((there,), widest(row_advantage(piece), sets, piece.uniform(self)[:, 0], self.keep))


def row_advantage(batch: Batch) -> Tensor:
    """One advantage per row ``[N]``: its mean, and exactly the one value where all decisions have the same."""
    if batch.advantage is None:
        raise MethodError("a filter on advantages is late, and this batch has none yet.")
    on = batch.sampled > 0
    low = torch.where(on, batch.advantage, torch.inf).amin(1)
    high = torch.where(on, batch.advantage, -torch.inf).amax(1)
    # A mean of equal floats can differ from them in the last bit, and then order and ties would hang on the padding.
    return torch.where(low == high, low, batch.row_mean(batch.advantage))


def widest(value: Tensor, sets: Tensor, lots: Tensor, keep: float) -> Tensor:
    """Of each set (numbered 0, 1, ...) the share of values with the largest variance, as booleans; ``lots`` break ties."""
    order = lots.argsort()
    order = order[value[order].argsort(stable=True)]
    order = order[sets[order].argsort(stable=True)]
    size = torch.bincount(sets)
    start = size.cumsum(0) - size
    place = torch.arange(len(value), device=value.device) - start[sets[order]]  # rank within the set
    table = torch.zeros(len(size), int(size.max()), dtype=torch.float64, device=value.device)
    table[sets[order], place] = value[order].double()
    wanted = (keep * size - 1e-9).ceil().long().clamp_min(1)
    top = _best_top(table, size, wanted)
    own = sets[order]
    chosen = (place < (wanted - top)[own]) | (place >= (size - top)[own])
    return torch.zeros_like(chosen).index_put((order,), chosen)


def _best_top(table: Tensor, size: Tensor, wanted: Tensor) -> Tensor:
    """How many of the largest values belong to the best choice, for each row of ascending values."""
    sums, squares = (torch.nn.functional.pad(column.cumsum(1), (1, 0)) for column in (table, table.square()))
    top = torch.arange(int(wanted.max()) + 1, device=table.device).expand(len(size), -1)
    bottom = (wanted.unsqueeze(1) - top).clamp_min(0)
    rest = size.unsqueeze(1) - top  # where the largest begin
    total, square = (c.gather(1, bottom) + c.gather(1, size.unsqueeze(1)) - c.gather(1, rest.clamp_min(0)) for c in (sums, squares))
    count = wanted.unsqueeze(1)
    variance = (square / count - (total / count).square()).masked_fill(top > count, -math.inf)
    # Sums of equal sets may differ in the last bits: of those that agree to rounding, the first.
    near = variance >= variance.amax(1, keepdim=True) - 1e-12 * square.abs().amax(1, keepdim=True)
    return near.long().argmax(1)
