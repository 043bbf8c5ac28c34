"""Who acts while experience is gathered: the parts of the slot ``acting``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.types import Acting, ActingContext


@dataclass(frozen=True)
class UniformFirst(Acting):
    """Uniform actions at first, so that a critic begins with all kinds of them; nothing is learned before.

    Fields:
        steps: of the environments. More explores wider and begins later.
    """

    ranges: ClassVar = {"steps": "[0, inf)"}

    steps: int = 100

    def __call__(self, action: np.ndarray, context: ActingContext) -> np.ndarray:
        if context.env_steps >= self.steps:
            return action
        if context.discrete:
            return context.uniform_choices()
        return context.random.uniform(-1.0, 1.0, action.shape).astype(np.float32)

    def warm_up(self) -> int:
        return self.steps


@dataclass(frozen=True)
class GaussianNoise(Acting):
    """Normal noise on action vectors.

    Fields:
        std: its spread, in units of half the action's range.
    """

    ranges: ClassVar = {"std": "[0, inf)"}

    std: float = 0.1

    def __call__(self, action: np.ndarray, context: ActingContext) -> np.ndarray:
        noise = self.std * context.random.standard_normal(action.shape)
        return np.clip(action + noise, -1.0, 1.0).astype(np.float32)


@dataclass(frozen=True)
class EpsilonGreedy(Acting):
    """A uniform choice with a probability that falls linearly.

    Fields:
        start: the probability as the run begins.
        end: that from then on.
        share: of the run's steps over which it falls.
    """

    ranges: ClassVar = {"start": "[0, 1]", "end": "[0, 1]", "share": "(0, 1]"}

    start: float = 1.0
    end: float = 0.05
    share: float = 0.1

    def epsilon(self, env_steps: int, planned: int) -> float:
        """The probability after so many of the planned steps."""
        done = min(env_steps / max(self.share * planned, 1), 1.0)
        return self.start + done * (self.end - self.start)

    def __call__(self, action: np.ndarray, context: ActingContext) -> np.ndarray:
        random = context.random
        explores = random.random(len(action)) < self.epsilon(context.env_steps, context.planned_steps)
        return np.where(explores, context.uniform_choices(), action)
