"""A picture with a bright field on one side: the action that names the side is paid."""

from __future__ import annotations

import gymnasium
import numpy as np


class Sides(gymnasium.Env):
    """One of ``choices`` vertical stripes of a grey picture is bright. Naming it pays 1; an episode has some four steps.

    It ends of itself with a chance of a fifth at each step, and after ``longest`` it is cut.
    """

    def __init__(self, side: int = 36, choices: int = 3, longest: int = 6, channels_first: bool = True):
        self.side, self.choices, self.longest, self.channels_first = side, choices, longest, channels_first
        shape = (1, side, side) if channels_first else (side, side, 1)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(choices)

    def _look(self) -> np.ndarray:
        picture = self.np_random.integers(0, 60, (self.side, self.side), dtype=np.uint8)
        width = self.side // self.choices
        picture[:, self.bright * width : (self.bright + 1) * width] += 150
        return picture[None] if self.channels_first else picture[:, :, None]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bright, self.time = int(self.np_random.integers(self.choices)), 0
        return self._look(), {}

    def step(self, action):
        reward, self.time = float(action == self.bright), self.time + 1
        self.bright = int(self.np_random.integers(self.choices))
        return self._look(), reward, bool(self.np_random.random() < 0.2), self.time >= self.longest, {}
