"""Clusters of numbers within groups."""

from __future__ import annotations

import torch
from torch import Tensor


def highest_cluster(value: Tensor, among: Tensor, group: Tensor, groups: int, clusters: int = 3) -> Tensor:
    """Of each group's values, those in the highest of ``clusters`` clusters ``[N]``: the best k-means of numbers, not a local one.

    In one dimension clusters are runs of the sorted values, so that the best cut is found exactly and nothing is drawn. Equal
    values are in one cluster. A group of at most ``clusters`` values has as many clusters as values.

    Args:
        value: numbers ``[N]``, all of them finite.
        among: which of them count ``[N]``; a group may have none.
        group: the group of each ``[N]``, from 0 to ``groups``.
    """
    table, count = _sorted_table(value.detach().double(), among, group, groups)
    if not table.shape[1]:
        return torch.zeros_like(among)
    cost = _run_costs(table, count)
    best = cost[:, 0]
    for _ in range(clusters - 2):
        best = (best.unsqueeze(2) + cost).amin(1)
    last = count.view(-1, 1, 1).expand(-1, cost.shape[1], 1)
    cut = (best + cost.gather(2, last).squeeze(2)).argmin(1)
    cut = torch.where(count <= clusters, count - 1, cut) if clusters > 1 else torch.zeros_like(count)
    lowest = table.gather(1, cut.clamp_min(0).unsqueeze(1)).squeeze(1)
    return among & (value.detach().double() >= lowest[group])


def _sorted_table(value: Tensor, among: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The values of each group in ascending order ``[G, K]``, zeros behind them, and how many there are ``[G]``."""
    place = among.nonzero().squeeze(1)
    count = torch.bincount(group[place], minlength=groups)
    order = place[value[place].argsort(stable=True)]
    order = order[group[order].argsort(stable=True)]
    row = group[order]
    column = torch.arange(len(order), device=value.device) - (count.cumsum(0) - count)[row]
    table = torch.zeros(groups, int(count.max()) if groups else 0, dtype=value.dtype, device=value.device)
    table[row, column] = value[order]
    return table, count


def _run_costs(table: Tensor, count: Tensor) -> Tensor:
    """Squared distance of the values i to j - 1 of each group from their mean ``[G, K + 1, K + 1]``; infinite where there are "
    "none."""
    width = torch.arange(table.shape[1] + 1, device=table.device)
    there = width[:-1] < count.unsqueeze(1)
    centred = torch.where(
        there, table - table.sum(1, keepdim=True) / count.clamp_min(1).unsqueeze(1), 0.0
    )  # sums of squares cancel less
    total, square = (torch.nn.functional.pad(each.cumsum(1), (1, 0)) for each in (centred, centred.square()))
    size = width.unsqueeze(0) - width.unsqueeze(1)
    sums, squares = total.unsqueeze(1) - total.unsqueeze(2), square.unsqueeze(1) - square.unsqueeze(2)
    cost = (squares - sums.square() / size.clamp_min(1)).clamp_min(0)
    return torch.where((size > 0) & (width <= count.view(-1, 1, 1)), cost, torch.inf)
