"""The policy's distribution over a group, matched to one its rewards ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.surrogate import advantage_of, finite_logp
from upslope.types import Batch

Divergence = Literal["square", "jensen-shannon", "forward-kl"]


@dataclass(frozen=True)
class GroupMatching(Regularizer):
    r"""Distance between the policy over the sampled group and a Boltzmann distribution of its advantages (DMPO).

    .. math::  P = \mathrm{softmax}_i\Big(\frac{1}{T_i}\sum_t \log\pi_\theta(y_{i,t})\Big), \quad
               Q = \mathrm{softmax}_i(\bar A_i / temperature), \quad
               L = weight \cdot \mathrm{mean}_{groups}\, \frac{1}{G}\sum_i (Q_i - P_i)^2

    Equally good answers get equal targets, however likely they are now: what keeps several ways of being right alive. A row
    without decisions has no likelihood and is in no group.

    Fields:
        weight: larger keeps more diversity; 0 switches the term off.
        temperature: 1/15 asks for the best answers almost alone; larger ones ask for a flatter group.
        divergence: ``"square"`` as above (the paper's code); ``"jensen-shannon"``; ``"forward-kl"`` is
            :math:`\sum_i Q_i \log Q_i/P_i`, which the paper starts from.
        skip_flat: leave out groups whose advantages are all within 1e-5. Otherwise such a group is pushed towards uniform.
        mean_over: ``"groups"``: all groups of the update, so that one that is left out counts as matched. ``"kept"``, as in the
            paper's code: what ``skip_flat`` leaves over, and for ``"square"`` its answers instead of its groups, so that larger
            groups count more.
    """

    scope = "group"
    ranges: ClassVar = {"weight": "[0, inf)", "temperature": "(0, inf)"}
    aggregated: ClassVar[bool] = False

    weight: float = 1.0
    temperature: float = 1 / 15
    divergence: Divergence = "square"
    skip_flat: bool = False
    mean_over: Literal["groups", "kept"] = "groups"

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise MethodError(f"GroupMatching.weight is {self.weight:g}; it is 0 or above.")
        if not self.temperature > 0:
            raise MethodError(f"GroupMatching.temperature is {self.temperature:g}; it is above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def prepare(self, batch: Batch) -> Tensor:
        """What a group's distance counts ``[N]``: one over the number of groups with a decision, or as ``mean_over`` says."""
        counted = batch.lengths() > 0
        if self.mean_over == "kept" and self.skip_flat:
            index, groups = batch.group_index()
            counted = counted & ~self._flat(batch.row_mean(advantage_of(batch)), counted, index, groups)
        groups = batch.group[counted].unique().numel()
        if self.mean_over == "groups" or self.divergence != "square":
            return torch.full_like(batch.reward, 1 / max(groups, 1))
        return self._size(batch, batch.reward.dtype) / counted.sum().clamp_min(1)

    def __call__(self, batch: Batch) -> Tensor:
        there = batch.lengths() > 0
        index, groups = batch.group_index()
        likelihood, advantage = batch.row_mean(finite_logp(batch)), batch.row_mean(advantage_of(batch)).detach()
        log_policy = _log_softmax(likelihood, there, index, groups)
        log_target = _log_softmax(advantage / self.temperature, there, index, groups)
        size = self._size(batch, likelihood.dtype)
        loss = self._divergence(log_policy, log_target, size) * batch.prepared[self] * there
        if self.skip_flat:
            loss = torch.where(self._flat(advantage, there, index, groups), 0.0, loss)
        return self.weight * batch.per_decision(loss / batch.lengths().clamp_min(1))

    def _flat(self, advantage: Tensor, there: Tensor, index: Tensor, groups: int) -> Tensor:
        """Rows ``[N]`` of groups whose advantages are all the same."""
        spread = _extreme(advantage, there, index, groups, "amax") - _extreme(advantage, there, index, groups, "amin")
        return ~(spread > 1e-5)

    def _size(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """How many rows of each row's group have a decision ``[N]``."""
        index, groups = batch.group_index()
        there = (batch.lengths() > 0).to(dtype)
        return there.new_zeros(groups).index_add_(0, index, there)[index]

    def _divergence(self, log_policy: Tensor, log_target: Tensor, size: Tensor) -> Tensor:
        """Each row's share of its group's distance ``[N]``."""
        policy, target = log_policy.exp(), log_target.exp()
        if self.divergence == "square":
            return (target - policy).square() / size.clamp_min(1)
        if self.divergence == "forward-kl":
            return target * (log_target - log_policy)
        log_middle = torch.logaddexp(log_policy, log_target) - torch.full_like(size, 2.0).log()
        return (policy * (log_policy - log_middle) + target * (log_target - log_middle)) / 2


def _extreme(value: Tensor, there: Tensor, index: Tensor, groups: int, reduce: Literal["amin", "amax"]) -> Tensor:
    """Smallest or largest value of each group, on its rows ``[N]``; infinite for a group that has none."""
    neutral = torch.inf if reduce == "amin" else -torch.inf
    start = torch.full((groups,), neutral, dtype=value.dtype, device=value.device)
    return start.scatter_reduce(0, index, torch.where(there, value, neutral), reduce)[index]


def _log_softmax(value: Tensor, there: Tensor, index: Tensor, groups: int) -> Tensor:
    """Log-probabilities over the rows of each group that are there ``[N]``; zero elsewhere."""
    top = _extreme(value.detach(), there, index, groups, "amax")
    shifted = torch.where(there, value - top, 0.0)
    total = torch.zeros(groups, dtype=value.dtype, device=value.device).index_add(0, index, shifted.exp() * there)
    return torch.where(there, shifted - total.clamp_min(1e-30).log()[index], 0.0)
