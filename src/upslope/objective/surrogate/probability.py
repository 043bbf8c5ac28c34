"""A clip whose range depends on how likely the decision was (DCPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, check_region, pessimistic
from upslope.types import Batch


@dataclass(frozen=True)
class ProbabilityClip(Surrogate):
    r"""PPO's clip with bounds from :math:`|(r - 1)\,p_\theta| \le \epsilon`: wide for unlikely decisions, narrow for likely (DCPO).

    .. math::
        lo = \tfrac12 + \tfrac12\sqrt{\max(0, 1 - 4\,low/q)},\qquad
        hi = \min\big(\tfrac12 + \tfrac12\sqrt{1 + 4\,high/q},\ most\big),\qquad
        L = -\min(rA, \mathrm{clip}(r, lo, hi) A)

    with q the proximal policy's probability of the decision.

    Fields:
        low, high: how far a probability may move, in the units of the formula. Larger bounds less.
        most: no upper bound is above this, however unlikely the decision was.
        dual: where A < 0, the loss is no larger than :math:`-dual \cdot A`. Infinite: none.
    """

    ranges: ClassVar = {"dual": "(1, inf]"}

    low: float = 0.16
    high: float = 0.2
    most: float = 10.0
    dual: float = 10.0

    def __post_init__(self) -> None:
        check_region(self)
        if not (self.most >= 1 and self.dual >= 1):
            raise MethodError(f"ProbabilityClip has most={self.most:g} and dual={self.dual:g}; bounds of a ratio are 1 or above.")

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def bounds(self, logp: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bound of the ratio, from the proximal log-probabilities."""
        chance = logp.exp().nan_to_num(nan=1.0).clamp_min(1e-30)  # 0 / 0 is no bound
        low = 0.5 + 0.5 * (1 - 4 * self.low / chance).clamp_min(0).sqrt()
        high = 0.5 + 0.5 * (1 + 4 * self.high / chance).sqrt()
        return low, high.clamp(max=self.most)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        if batch.proximal is None:
            raise MethodError("ProbabilityClip needs the proximal log-probabilities; this batch has not been evaluated.")
        (branch,), advantage = branches, advantage_of(batch)
        low, high = self.bounds(batch.proximal.logp.detach())
        free = branch.value * advantage
        bounded = branch.value.clamp(low, high) * advantage
        return pessimistic(free, bounded, advantage, self.dual)
