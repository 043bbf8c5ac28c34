"""A trust region that opens until positive advantages supply their share (BAPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.ratio import LOG_LIMIT, log_ratio, raw_log_ratio
from upslope.objective.surrogate.clip import advantage_of, pessimistic
from upslope.types import Batch


@dataclass(frozen=True)
class BalancedClip(Surrogate):
    r"""PPO's clip to :math:`[c_{lo}, c_{hi}]`, both raised step by step in each update until positive advantages count enough.

    .. math::  \rho = \frac{\sum_{A>0} w_t |\min(rA, \mathrm{clip}(r) A)|}{\sum_t w_t |\min(rA, \mathrm{clip}(r) A)|} \ge target,
               \qquad L = -\min(rA,\ \mathrm{clip}(r, c_{lo}, c_{hi})\,A)

    First one bound moves to its limit, then the other; the search stops as soon as the share is reached. Without positive
    advantages it ends at the limits, without negative ones at the start.

    Fields:
        target: share of the positive ones to reach. 0 leaves the bounds at their start; 1 always opens them fully.
        low_start, low_limit, low_step: range and step of the lower bound. A higher one stops unlikely bad tokens earlier.
        high_start, high_limit, high_step: range and step of the upper bound. A higher one lets rare good tokens grow further.
        first: which bound moves first; the paper's is ``"high"``, the released code's ``"low"``.
        weighted: multiply each decision by the probability under which it was sampled (the paper's); the released code does not.
        contribution: ``"surrogate"`` sums the clipped values as above. There a higher lower bound *raises* what negative ones
            count, though it stops their gradient; ``"gradient"`` (ours) counts only what still has a gradient.
        dual: where A < 0, the loss is no larger than :math:`-dual \cdot A`. Infinite: none.
    """

    ranges: ClassVar = {"dual": "(1, inf]"}

    target: float = 0.4
    low_start: float = 0.6
    low_limit: float = 0.9
    low_step: float = 0.02
    high_start: float = 1.2
    high_limit: float = 3.0
    high_step: float = 0.05
    first: Literal["high", "low"] = "high"
    weighted: bool = True
    contribution: Literal["surrogate", "gradient"] = "surrogate"
    dual: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.target <= 1:
            raise MethodError(f"BalancedClip.target is {self.target}; it is a share from 0 to 1.")
        if not (0 <= self.low_start <= self.low_limit <= 1 <= self.high_start <= self.high_limit):
            raise MethodError(
                f"BalancedClip moves its bounds from {self.low_start:g} to {self.low_limit:g} and from {self.high_start:g} to "
                f"{self.high_limit:g}; ratio bounds rise, the lower ones at most to 1, the upper ones from 1 or above."
            )
        if not (self.low_step > 0 and self.high_step > 0):
            raise MethodError(f"BalancedClip has steps {self.low_step:g} and {self.high_step:g}; both are above 0.")

    def prepare_needs(self) -> frozenset[str]:
        return frozenset({"current.logp", "proximal.logp"}) if self.target else frozenset()

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def bounds(self) -> list[tuple[float, float]]:
        """The pairs (lower, upper) in the order in which the search tries them."""
        lows = _ladder(self.low_start, self.low_limit, self.low_step)
        highs = _ladder(self.high_start, self.high_limit, self.high_step)
        if self.first == "high":
            return [(lows[0], high) for high in highs] + [(low, highs[-1]) for low in lows[1:]]
        return [(low, highs[0]) for low in lows] + [(lows[-1], high) for high in highs[1:]]

    def shares(self, batch: Batch) -> Tensor:
        """Share of the positive advantages under each pair of `bounds`."""
        ratio, advantage = log_ratio(batch).detach().exp(), advantage_of(batch)
        # A ratio that had to be limited has no gradient, and one of e^20 would be the whole sum.
        weight = advantage.abs() * ((batch.sampled > 0) & (raw_log_ratio(batch).abs() <= LOG_LIMIT))
        if self.weighted:
            assert batch.proximal is not None
            recorded = batch.behavior.logp
            # Where nobody recorded a probability, or an impossible one, the policy before the step stands in.
            logp = torch.where(recorded.isfinite(), recorded, batch.proximal.logp)
            weight = weight * torch.where(logp.isfinite(), logp, -torch.inf).exp()
        good = [self._sum(weight * (advantage > 0), ratio, high, ratio > high) for _, high in self.bounds()]
        bad = [self._sum(weight * (advantage < 0), ratio, low, ratio < low) for low, _ in self.bounds()]
        positive, negative = torch.stack(good), torch.stack(bad)
        # Nothing negative, or nothing at all: there is nothing to balance.
        return torch.where(negative > 0, positive / (positive + negative), 1.0)

    def _sum(self, weight: Tensor, ratio: Tensor, bound: float, outside: Tensor) -> Tensor:
        """What these decisions count where a ratio outside is replaced by the bound."""
        return (weight * torch.where(outside, bound if self.contribution == "surrogate" else 0.0, ratio)).sum()

    def prepares(self) -> bool:
        return self.target > 0

    def prepare(self, batch: Batch) -> Tensor:
        """The number of the pair of bounds at which the search stops, the same for all rows ``[N]``."""
        if batch.current is None:
            raise MethodError("BalancedClip looks at the current policy before an update, and this batch has none.")
        enough = self.shares(batch) >= self.target
        last = torch.full_like(enough[:1], True, dtype=torch.bool)
        return torch.cat([enough[:-1], last]).long().argmax().expand(batch.rows)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        free = branch.value * advantage
        number = batch.prepared[self] if self.target else torch.zeros_like(batch.group)
        low, high = advantage.new_tensor(self.bounds())[number].unbind(1)
        bounded = torch.maximum(torch.minimum(branch.value, high.unsqueeze(1)), low.unsqueeze(1)) * advantage
        loss, notes = pessimistic(free, bounded, advantage, self.dual)
        return loss, notes | {"bounds_moved": (number > 0).unsqueeze(1).expand_as(loss)}


def _ladder(start: float, limit: float, step: float) -> list[float]:
    """``start`` and as many whole steps as fit below the limit."""
    # The small number undoes the rounding of e.g. 0.3 / 0.02.
    return [start + step * number for number in range(1 + math.floor((limit - start) / step + 1e-9))]
