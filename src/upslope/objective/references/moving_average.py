"""The average of what the policy was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.objective.base import Reference
from upslope.types import Policy


@dataclass(frozen=True)
class MovingAverage(Reference):
    r"""An exponential moving average of the policy's weights, moved after each step.

    .. math::  \bar\theta \leftarrow decay\,\bar\theta + (1 - decay)\,\theta

    It begins as the policy does. Adapters are averaged as they are, not their products. In a model whose own weights are in half
    precision an average with a decay near 1 stands still, as its moves are lost to rounding.

    Fields:
        decay: share of the average that stays. 0 is the policy before the step, 1 the policy as the run began; between them the
            average lags ``1 / (1 - decay)`` steps behind.
    """

    ranges: ClassVar = {"decay": "[0, 1]"}
    copies: ClassVar[int] = 1

    decay: float = 0.99

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        return (policy.frozen_copy(),)

    def due(self, step: int) -> bool:
        return step > 1  # before a step is after the one before it

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        now = policy.weights()
        with torch.no_grad():
            for name, average in kept[0].weights().items():
                average.lerp_(now[name].to(average), 1 - self.decay)
        return kept
