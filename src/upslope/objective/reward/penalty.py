"""Rewards that a method adds to the task's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.errors import MethodError
from upslope.objective.base import Reward
from upslope.objective.regularize import Estimator, kl_estimate
from upslope.types import Batch


@dataclass(frozen=True)
class OverlongPenalty(Reward):
    r"""A soft penalty for answers that come near the limit (DAPO): :math:`\min(0, -\frac{T - (L - L_c)}{L_c}\,penalty)`.

    Fields:
        limit: L in tokens; 0 takes the run's token limit.
        buffer: :math:`L_c` as a share of L. The paper's 4096 of 20480 is a fifth.
        penalty: what an answer of exactly L tokens loses.
    """

    ranges: ClassVar = {"limit": "[0, inf)", "penalty": "[0, inf)"}

    limit: int = 0
    buffer: float = 0.2
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= 1:
            raise MethodError(f"OverlongPenalty.buffer is {self.buffer}; it is a share of the limit, above 0 and at most 1.")

    def __call__(self, batch: Batch) -> Batch:
        limit = self.limit or batch.horizon
        if limit <= 0:
            raise MethodError("OverlongPenalty has no limit: the batch does not say how long a row may be; set reward.limit.")
        buffer = self.buffer * limit
        extra = (-(batch.lengths() - (limit - buffer)) / buffer * self.penalty).clamp(max=0.0)
        return batch.replace(reward=batch.reward + extra, components={**batch.components, "overlong": extra})


@dataclass(frozen=True)
class StepKL(Reward):
    r"""Each decision pays for its distance to a reference policy (PPO for language models): :math:`-weight \cdot k1_t`.

    Fields:
        weight: larger keeps the policy nearer to the reference; an `AdaptiveKL` controller can move it.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 0.05
    estimator: Estimator = "k1"
    reference: str = "start"

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.reference}.logp", "proximal.logp"}) if self.weight else frozenset()

    def __call__(self, batch: Batch) -> Batch:
        if not self.weight:
            return batch
        if batch.proximal is None or self.reference not in batch.reference:
            raise MethodError(f"StepKL needs the proximal policy and the reference {self.reference!r}; this batch lacks one.")
        cost = self.weight * kl_estimate(batch.proximal.logp, batch.reference[self.reference].logp, self.estimator) * batch.sampled
        steps = torch.zeros_like(cost) if batch.step_reward is None else batch.step_reward
        return batch.replace(step_reward=steps - cost, components={**batch.components, "kl": -cost.sum(1)})
