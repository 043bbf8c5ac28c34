"""An environment that breaks on demand, where other processes can import it."""

from __future__ import annotations

import os

import gymnasium
import numpy as np


class Fragile(gymnasium.Env):
    """Counts its steps aloud and breaks, or takes its process with it, when it is told to."""

    def __init__(self, how: str = ""):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action):
        self.time += 1
        print("an environment that talks")
        if action == 2 and self.how == "breaks":
            raise ZeroDivisionError("the pole is on fire")
        if action == 2 and self.how == "dies":
            os._exit(7)
        return np.array([self.time], np.float32), 1.0, False, self.time >= 5, {}
