"""An environment with a fault that is asked for. It stands here so that other processes can load it."""

from __future__ import annotations

import gymnasium
import numpy as np

GOOD = np.zeros(3, np.float32)


def raises(what: BaseException):
    raise what


FAULTS = {
    "reset raises": ("reset", lambda: raises(KeyError("level 1")), "raised KeyError: 'level 1' (faulty_environment.py, line"),
    "step raises": ("step", lambda: raises(ZeroDivisionError("on fire")), "raised ZeroDivisionError: on fire (faulty_env"),
    "step exits": ("step", lambda: raises(SystemExit(0)), "raised SystemExit: 0"),
    "old reset": ("reset", lambda: GOOD, "(expected 2)); gymnasium wants an observation and a dict"),
    "old step": ("step", lambda: (GOOD, 0.0, False, {}), "not enough values to unpack (expected 5, got 4)"),
    "step without a tuple": ("step", lambda: None, "returned None from step"),
    "a longer observation": ("step", lambda: (np.zeros(4), 0.0, False, False, {}), "(it has 4 numbers)"),
    "a shorter observation": ("step", lambda: (np.zeros(1), 0.0, False, False, {}), "declared observations of 3 numbers"),
    "a longer first observation": ("reset", lambda: (np.zeros(4), {}), "(it has 4 numbers)"),
    "no observation": ("step", lambda: (None, 0.0, False, False, {}), "from step"),
    "NaN observed": ("step", lambda: (GOOD * np.nan, 0.0, False, False, {}), "gave the observation array([nan, nan, nan]"),
    "NaN observed first": ("reset", lambda: (GOOD * np.nan, {}), "which is not a finite number, from reset()"),
    "NaN paid": ("step", lambda: (GOOD, float("nan"), False, False, {}), "reward nan, which is not a finite number, from step()"),
    "infinity paid": ("step", lambda: (GOOD, np.inf, False, False, {}), "gave the reward inf"),
    "text paid": ("step", lambda: (GOOD, "much", False, False, {}), "gave the reward 'much'"),
    "nothing paid": ("step", lambda: (GOOD, None, False, False, {}), "gave the reward None"),
    "a list paid": ("step", lambda: (GOOD, [1.0, 2.0], False, False, {}), "gave the reward [1.0, 2.0]"),
}  # fmt: skip


class Faulty(gymnasium.Env):
    """Well for two steps of its first episode; then what was asked for. Without a fault it never ends."""

    def __init__(self, fault: str = ""):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.where, self.give, _ = FAULTS.get(fault, ("nowhere", None, ""))
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.give() if self.where == "reset" else (GOOD, {})

    def step(self, action):
        self.time += 1
        return self.give() if self.where == "step" and self.time == 3 else (GOOD, 1.0, False, False, {})
