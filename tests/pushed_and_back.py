"""Small environments that are never reset: a point that drifts a little is pushed to the right and comes back."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from upslope import reset_free

STEPS = 6
"""Of a phase."""


class Pushed(gymnasium.Env):
    """Pushed by up to 0.5 in a step, and drifting by chance; beyond 1 it is there, which ends it."""

    observation_space = gymnasium.spaces.Box(np.float32(-3.0), np.float32(3.0), (2,))
    action_space = gymnasium.spaces.Box(np.float32(-1.0), np.float32(1.0), (1,))
    made: list[Pushed] = []  # noqa: RUF012  (all that were made, to be counted)

    def __init__(self) -> None:
        self.resets, self.steps = 0, 0
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.resets += 1
        self.place, self.drift = float(self.np_random.uniform(-0.3, 0.3)), 0.0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        self.drift = 0.5 * self.drift + float(self.np_random.normal(0.0, 0.05))
        self.place = float(np.clip(self.place + 0.5 * float(action[0]) + self.drift, -3.0, 3.0))
        there = self.place > 1.0
        return self.seen(), float(there), there, False, {}

    def seen(self) -> np.ndarray:
        return np.array([self.place, self.drift], np.float32)


class Kept(Pushed):
    """The same, which says where it is and can be put there."""

    def get_state(self) -> list[float]:
        return [self.place, self.drift]

    def set_state(self, numbers: np.ndarray) -> None:
        self.place, self.drift = (float(number) for number in numbers)


def is_back(seen: np.ndarray) -> bool:
    return bool(seen[0] < 0.0)


def pair() -> gymnasium.Env:
    return reset_free(Kept(), is_back, STEPS)


def pair_without_state() -> gymnasium.Env:
    return reset_free(Pushed(), is_back, STEPS)


def forward() -> gymnasium.Env:
    return reset_free(Kept(), is_back, STEPS, forward_only=True)
