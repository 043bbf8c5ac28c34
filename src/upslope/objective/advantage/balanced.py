"""A group in which wrong answers do not outnumber right ones; a soft maximum as baseline."""

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
class BalancedBaseline(Advantage):
    r"""Reward minus the mean of what is kept: where answers below the mean outnumber the others, a random part of them is dropped.

    .. math::  A_i = R_i - \frac{1}{|K|}\sum_{j \in K} R_j \quad (i \in K), \qquad A_i = 0 \quad (i \notin K)

    :math:`K` holds every answer at or above the group's mean and as many of those below it, chosen at random (RED-Drop).

    Fields:
        scale: ``"std"`` also divides by the spread of what is kept; ``"none"`` only centres.
        ddof: 0 is the population's spread, as in the paper's code.
        eps: added to the divisor.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    scale: Literal["std", "none"] = "none"
    ddof: int = 0
    eps: float = 1e-6

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "key"})

    def __call__(self, batch: Batch) -> Tensor:
        keep = self.kept(batch)
        stats = batch.group_stats(batch.reward)
        index, groups = batch.group_index()

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=column.dtype, device=column.device).index_add_(0, index, column * keep)[index]

        count = total(torch.ones_like(batch.reward))
        centred = batch.reward - total(batch.reward) / count
        if self.scale == "std":
            centred = centred / ((total(centred.square()) / (count - self.ddof).clamp_min(1)).sqrt() + self.eps)
        return batch.per_decision((centred * keep).masked_fill(stats.constant, 0.0))

    def kept(self, batch: Batch) -> Tensor:
        """Booleans ``[N]``: what is left of each group."""
        good = batch.reward >= batch.group_stats(batch.reward).mean
        index, groups = batch.group_index()
        # Each group's lower answers first, in a random order that is the rows' own: a row's place says how many stand before it.
        order = batch.uniform(self)[:, 0].argsort(stable=True)
        order = order[(2 * index + good)[order].argsort(stable=True)]
        size = torch.bincount(index, minlength=groups)
        place = torch.empty_like(index)
        place[order] = torch.arange(batch.rows, device=index.device) - (size.cumsum(0) - size)[index[order]]
        number = torch.zeros_like(size).index_add_(0, index, good.to(size.dtype))
        return good | (place < number[index])


@dataclass(frozen=True)
class SoftBaseline(Advantage):
    r"""Reward minus a soft maximum of the group's, damped: the earlier form of OPMD.

    .. math::  A_i = \frac{1}{1 + \tau}\Big(R_i - \tau \log \frac{1}{G} \sum_j e^{R_j / \tau}\Big)

    Fields:
        temperature: :math:`\tau`. Infinite takes the mean and no damping; towards 0 the baseline is the best of the group, so that
            all others are pushed down.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise MethodError(f"SoftBaseline.temperature is {self.temperature:g}; it is above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        stats = batch.group_stats(batch.reward)
        if math.isinf(self.temperature):
            centred = batch.reward - stats.mean
        else:
            index, groups = batch.group_index()
            best = torch.full((groups,), -torch.inf, dtype=batch.reward.dtype, device=batch.reward.device)
            best = best.scatter_reduce_(0, index, batch.reward, "amax")[index]
            mean = batch.group_stats(((batch.reward - best) / self.temperature).exp()).mean
            centred = (batch.reward - best - self.temperature * mean.log()) / (1 + self.temperature)
        return batch.per_decision(centred.masked_fill(stats.constant, 0.0))
