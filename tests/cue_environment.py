"""An episode that must be remembered: what is shown first is asked for last."""

from __future__ import annotations

import gymnasium
import numpy as np


class Cue(gymnasium.Env):
    """Shows one of two cues, then nothing for ``steps`` - 1 steps; naming the cue with the last action pays 1.

    Observations are the cue (1, -1, and 0 when it is gone) and whether it is asked for now. What does not remember is right half
    of the time.
    """

    def __init__(self, steps: int = 6):
        self.steps = steps
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def _look(self) -> np.ndarray:
        return np.array([(2 * self.cue - 1) * (self.time == 0), self.time == self.steps - 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        done = self.time == self.steps
        return self._look(), float(done and action == self.cue), done, False, {}
