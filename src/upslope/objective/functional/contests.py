"""Contests: the rows of a group, of which some won and some lost.

A row won if its advantage is above zero and lost if it is below; by how much says how sure that is, 1 being certain. A row without
decisions takes no part.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.types import Batch

Extreme = Literal["amax", "amin"]


class Contests(NamedTuple):
    """Who won and who lost in each group of a batch."""

    contest: Tensor
    """The contest of each row ``[N]``, from 0."""
    groups: int
    won: Tensor
    """Rows ``[N]`` that won a decided contest."""
    lost: Tensor
    sure: Tensor
    """How sure the win of each contest is ``[G]``: the mean of its winners' advantages, at most 1."""
    decided: Tensor
    """Contests ``[G]`` with a winner and a loser."""

    @classmethod
    def of(cls, batch: Batch) -> Contests:
        """The contests of a batch with advantages."""
        if batch.advantage is None:
            raise MethodError("who won a contest is what the advantage says, and this batch has none yet.")
        index, count = batch.group_index()
        advantage, there = batch.row_mean(batch.advantage).detach(), batch.lengths() > 0
        won, lost = there & (advantage > 0), there & (advantage < 0)
        decided = _count(won, index, count).gt(0) & _count(lost, index, count).gt(0)
        won, lost = won & decided[index], lost & decided[index]
        return cls(index, count, won, lost, _mean(advantage.clamp(max=1.0), won, index, count), decided)

    def winners(self, value: Tensor) -> Tensor:
        """Mean over each contest's winners ``[G]``; zero where it is not decided."""
        return _mean(value, self.won, self.contest, self.groups)

    def losers(self, value: Tensor) -> Tensor:
        """Mean over each contest's losers ``[G]``; zero where it is not decided."""
        return _mean(value, self.lost, self.contest, self.groups)

    def losers_log_sum_exp(self, value: Tensor) -> Tensor:
        """Logarithm of the sum of exponentials over each contest's losers ``[G]``; zero where it is not decided."""
        lowest = torch.full((self.groups,), -torch.inf, dtype=value.dtype, device=value.device)
        top = lowest.scatter_reduce(0, self.contest, torch.where(self.lost, value.detach(), -torch.inf), "amax")
        top = torch.where(self.decided, top, 0.0)
        shifted = torch.where(self.lost, value - top[self.contest], -torch.inf)
        total = torch.zeros_like(lowest).index_add(0, self.contest, shifted.exp())
        return torch.where(self.decided, top + torch.where(self.decided, total, 1.0).log(), 0.0)

    def any_row(self, which: Tensor) -> Tensor:
        """Contests ``[G]`` that have any of these rows ``[N]``."""
        return _count(which, self.contest, self.groups) > 0

    def per_decision(self, value: Tensor, batch: Batch) -> Tensor:
        """A value per contest on every decision of the rows that won or lost it ``[N, T]``; zero elsewhere."""
        taking_part = (self.won | self.lost).unsqueeze(1) & (batch.sampled > 0)
        return torch.where(taking_part, value[self.contest].unsqueeze(1), 0.0)

    def per_winner(self, value: Tensor) -> Tensor:
        """A value per contest on its winners' rows ``[N]``, NaN elsewhere: what a note of it is."""
        return torch.where(self.won, value[self.contest], torch.nan)


def group_extreme(batch: Batch, value: Tensor, there: Tensor, reduce: Extreme) -> Tensor:
    """Largest or smallest value of each row's group ``[N]``, of the rows that are ``there``."""
    index, groups = batch.group_index()
    neutral = -torch.inf if reduce == "amax" else torch.inf
    start = torch.full((groups,), neutral, dtype=value.dtype, device=value.device)
    return start.scatter_reduce(0, index, torch.where(there, value, neutral), reduce)[index]


def first_of_group(batch: Batch, value: Tensor, there: Tensor, reduce: Extreme) -> Tensor:
    """In each group the first row ``[N]`` with its largest or smallest value."""
    among = there & (value == group_extreme(batch, value, there, reduce))
    index, groups = batch.group_index()
    place = torch.arange(batch.rows, device=index.device)
    first = torch.full((groups,), batch.rows, device=index.device)
    first = first.scatter_reduce(0, index, torch.where(among, place, batch.rows), "amin")
    return among & (place == first[index])


def _count(which: Tensor, index: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64, device=index.device).index_add_(0, index, which.long())


def _mean(value: Tensor, which: Tensor, index: Tensor, count: int) -> Tensor:
    total = torch.zeros(count, dtype=value.dtype, device=value.device).index_add(0, index, torch.where(which, value, 0.0))
    return total / _count(which, index, count).clamp_min(1)
