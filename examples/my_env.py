"""An environment of one's own: ``upslope train ppo gym:my_env:Track-v0``, or ``my_env.py:Track``, or ``my_env.py:windy``."""

from __future__ import annotations

import gymnasium
import numpy as np


class Track(gymnasium.Env):
    """A cart on a line is pushed to the middle; every step costs its distance."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, wind: float = 0.0):
        self.wind = wind

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1, 1), 0.0
        return np.array([self.place, self.speed]), {}

    def step(self, action: np.ndarray):
        self.speed = 0.9 * self.speed + 0.1 * (float(action[0]) + self.wind)
        self.place = float(np.clip(self.place + self.speed, -10, 10))
        return np.array([self.place, self.speed]), -abs(self.place), abs(self.place) >= 10, False, {}


def windy() -> gymnasium.Env:
    """A function may make it too, with settings and wrappers."""
    return gymnasium.wrappers.TimeLimit(Track(wind=0.3), 50)


gymnasium.register("Track-v0", entry_point="my_env:Track", max_episode_steps=50)
