"""A small environment that shows images, and what one must see in them is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Beacon(gymnasium.Env):
    """A bright square on the left or on the right of a noisy picture; going to that side pays 1, the other -1.

    Args:
        size: Width and height of the picture.
        steps: Of an episode, which is then cut.
        continuous: Actions are one number, its sign the side.
    """

    def __init__(self, size: int = 12, steps: int = 8, continuous: bool = False) -> None:
        self.size, self.steps, self.continuous = size, steps, continuous
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gymnasium.spaces.Discrete(2)

    def _look(self) -> np.ndarray:
        self.right = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (self.size, self.size, 1), np.uint8)
        third = self.size // 3
        left = self.size - third if self.right else 0
        picture[third : 2 * third, left : left + third] = 255
        return picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.done = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        side = int(action[0] > 0) if self.continuous else int(action)
        reward = 1.0 if side == self.right else -1.0
        self.done += 1
        return self._look(), reward, False, self.done >= self.steps, {}


class Steered(Beacon):
    """The same with vectors as actions."""

    def __init__(self) -> None:
        super().__init__(continuous=True)
