"""How a step is cut: into updates (shares of the data, one optimiser step each) and slices (what fits in memory).

Neither changes the gradient beyond rounding: denominators are those of the whole update (`estimator.begin_update`).
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from upslope.types import Batch, Scope, Trajectories

BatchT = TypeVar("BatchT", bound=Batch)


def share_groups(batch: BatchT, updates: int, generator: torch.Generator) -> list[BatchT]:
    """The updates of a pass: whole groups, dealt out at random in equal shares, rows in their original order."""
    index, groups = batch.group_index()
    if updates <= 1 or groups <= 1:
        return [batch]
    order = torch.randperm(groups, generator=generator)
    index = index.cpu()  # where the order was drawn
    return [batch.take_rows(torch.isin(index, share)) for share in order.tensor_split(min(updates, groups))]


def share_decisions(batch: BatchT, size: int, generator: torch.Generator) -> list[BatchT]:
    """The updates of a pass: the sampled decisions shuffled once, each a row of its own, and cut into views of that."""
    chosen = batch.sampled.flatten().nonzero().squeeze(1)
    shuffled = batch.take_decisions(chosen[torch.randperm(len(chosen), generator=generator)])
    return [shuffled.take_rows(slice(begin, begin + size)) for begin in range(0, len(chosen), size)]


def pack(batch: Batch, rows: Tensor, cost: Tensor, budget: int, scope: Scope) -> list[Tensor]:
    """Slices of ``rows`` whose padded cost (rows times the longest) stays within ``budget``; similar lengths go together.

    Args:
        cost: tokens of each row of the batch ``[N]``.
        scope: ``"group"`` keeps groups whole.
    """
    if len(rows) == 0:
        return []
    cost = cost.cpu()  # looked at row by row
    rows = rows.cpu()
    if len(rows) * int(cost[rows].max()) <= budget:
        return [rows]
    units = _groups(batch, rows) if scope == "group" else [rows[i : i + 1] for i in range(len(rows))]
    longest = [int(cost[unit].max()) for unit in units]
    slices: list[Tensor] = []
    current: list[Tensor] = []
    width = count = 0
    for position in sorted(range(len(units)), key=lambda i: longest[i]):
        width, count = max(width, longest[position]), count + len(units[position])
        if current and width * count > budget:
            slices.append(torch.cat(current))
            current, width, count = [], longest[position], len(units[position])
        current.append(units[position])
    return [*slices, torch.cat(current)]


def _groups(batch: Batch, rows: Tensor) -> list[Tensor]:
    group = batch.group.cpu()[rows]
    return [rows[group == name] for name in torch.unique(group)]


def only(batch: Trajectories, keep: Tensor) -> Trajectories:
    """The rows to keep, notes for people included."""
    if bool(keep.all()):
        return batch
    chosen = keep.nonzero().squeeze(1)
    return batch.take_rows(chosen).replace(info=[batch.info[i] for i in chosen.tolist()] if batch.info else [])
