"""Rewards normalised by a Beta density that follows how hard the tasks of the batch are (BNPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class BetaNormalised(Advantage):
    r"""Reward minus the group's mean, divided by a Beta density at that mean (BNPO).

    .. math::
        A_i = \frac{R_i - p}{f(p;\alpha,\beta)},\qquad
        \alpha = \max(1, 1 + \tfrac a3),\quad \beta = \max(1, 1 + \tfrac b3),\qquad
        a = c\,m,\quad b = c\,(1-m),\quad c = \frac{m(1-m)}{v} - 1

    Rewards lie in [0, 1], :math:`p` is the mean of a group, :math:`m` and :math:`v` are mean and variance of the groups' means: a
    and b are the moments' fit of a Beta distribution to the success rates, and the density a third of the way from the uniform
    one to it gives the gradient its least variance. A group whose rewards are all equal gets exactly zero.

    Fields:
        alpha, beta: 0 is fitted to each batch. Fixed at 1 and 1 the reward is only centred (REINFORCE); at 1.5 and 1.5 it is
            divided by the group's spread (GRPO) times pi / 8. Larger ones weigh the tasks far from their ratio more.
        lowest, highest: the range of rewards, mapped to [0, 1]; what lies outside counts as the nearer end.
        by_component: normalise each named component of the reward with a density of its own and add the results. Without
            components the reward itself is taken.
        largest_weight: the most that one over the density may be.
        sharpest: the largest alpha or beta of a fit. Tasks of nearly equal success rates would fit a density without bounds.
    """

    judges_by: ClassVar[str] = "highest"

    alpha: float = 0.0
    beta: float = 0.0
    lowest: float = 0.0
    highest: float = 1.0
    by_component: bool = False
    largest_weight: float = 1e6
    sharpest: float = 1e3

    def __post_init__(self) -> None:
        if not self.highest > self.lowest:
            raise MethodError(f"BetaNormalised has lowest={self.lowest:g} and highest={self.highest:g}; highest must be above.")
        if not all(value == 0 or value >= 1 for value in (self.alpha, self.beta)):
            raise MethodError(
                f"BetaNormalised has alpha={self.alpha:g} and beta={self.beta:g}; each is 1 or above, or 0 to be fitted."
            )
        if not self.sharpest >= 1:
            raise MethodError(f"BetaNormalised.sharpest is {self.sharpest:g}; a density's parameters are at least 1.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        # A reward that does not apply to a row is NaN there; it earned nothing.
        components = [value.nan_to_num(nan=0.0) for name, value in sorted(batch.components.items()) if name != "task"]
        rewards = components if self.by_component and components else [batch.reward]
        return batch.per_decision(torch.stack([self._normalised(batch, reward) for reward in rewards]).sum(0))

    def _normalised(self, batch: Batch, reward: Tensor) -> Tensor:
        reward = ((reward - self.lowest) / (self.highest - self.lowest)).clamp(0, 1)
        stats = batch.group_stats(reward)
        alpha, beta = self.parameters(batch, stats.mean, stats.size)
        weight = (-log_density(stats.mean, alpha, beta)).exp().clamp(max=self.largest_weight)
        return ((reward - stats.mean) * weight).masked_fill(stats.constant, 0.0)

    def parameters(self, batch: Batch, rate: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Alpha and beta for these success rates and group sizes, both given per row."""
        _, groups = batch.group_index()
        fixed = rate.new_tensor(self.alpha or 1.0), rate.new_tensor(self.beta or 1.0)
        if groups < 2:
            return fixed
        mean = (rate / size).sum() / groups
        variance = ((rate - mean) ** 2 / size).sum() / (groups - 1)
        # No variance at all divides by zero: infinite, or NaN where every rate is 0 or 1 and no group has a signal.
        concentration = (mean * (1 - mean) / variance - 1).nan_to_num(nan=0.0).clamp(max=3 * (self.sharpest - 1))
        fitted = (1 + concentration * mean / 3).clamp_min(1), (1 + concentration * (1 - mean) / 3).clamp_min(1)
        return fixed[0] if self.alpha else fitted[0], fixed[1] if self.beta else fitted[1]


def log_density(rate: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Logarithm of the Beta density; with alpha or beta at 1 also right at 0 and 1."""
    log_beta = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
    return torch.xlogy(alpha - 1, rate) + torch.xlogy(beta - 1, 1 - rate) - log_beta
