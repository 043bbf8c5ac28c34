"""Small environments for choices: some that are forbidden, and several at once."""

from __future__ import annotations

from typing import Literal

import gymnasium
import numpy as np
from gymnasium import spaces

CHOICES, STEPS = 6, 10
Convention = Literal["info", "method", "observation", "none"]


class Traps(gymnasium.Env):
    """One of six doors has the prize, and it is seen which; half of the others are traps, which end the episode and cost ten.

    Args:
        told: How the environment says where no trap is; ``none`` lets everything be tried.
    """

    action_space = spaces.Discrete(CHOICES)

    def __init__(self, told: Convention = "info", ends: int = STEPS) -> None:
        self.told, self.ends = told, ends
        seen = spaces.Box(0.0, 1.0, (CHOICES,), np.float32)
        mask = spaces.MultiBinary(CHOICES)
        self.observation_space = spaces.Dict(observation=seen, action_mask=mask) if told == "observation" else seen
        self.mask_method = (lambda: self.allowed.tolist()) if told == "method" else None

    def __getattr__(self, name: str):
        if name == "action_masks" and self.__dict__.get("mask_method") is not None:
            return self.mask_method
        raise AttributeError(name)

    def _show(self):
        self.prize = int(self.np_random.integers(CHOICES))
        self.allowed = np.zeros(CHOICES, np.int8)
        self.allowed[self.np_random.choice(CHOICES, CHOICES // 2, replace=False)] = 1
        self.allowed[self.prize] = 1
        seen = np.eye(CHOICES, dtype=np.float32)[self.prize]
        shown = {"observation": seen, "action_mask": self.allowed} if self.told == "observation" else seen
        return shown, {"action_mask": self.allowed} if self.told == "info" else {}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.time = 0
        return self._show()

    def step(self, action):
        self.time += 1
        trapped, won = not self.allowed[action], action == self.prize
        seen, info = self._show()
        return seen, -10.0 if trapped else float(won), trapped, self.time >= self.ends, info


class Dials(gymnasium.Env):
    """Three dials are to be set to what is shown; each that is right pays a third.

    Args:
        masked: Some settings, never the right ones, are forbidden.
        first: The smallest id of each dial.
        kind: The type of the numbers it takes, and no other.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    counts = np.array([3, 2, 4])
    observation_space = spaces.Box(-3.0, 3.0, (4,), np.float32)

    def __init__(self, masked: bool = False, first: tuple[int, ...] = (1, 0, -1), kind: type = np.int32) -> None:
        self.masked, self.start = masked, np.array(first)
        self.action_space = spaces.MultiDiscrete(self.counts, dtype=kind, start=self.start)
        self.taken: list[np.ndarray] = []

    def _show(self):
        self.wanted = self.start + self.np_random.integers(self.counts)
        seen = np.array([*self.wanted, self.time / STEPS], np.float32)
        if not self.masked:
            return seen, {}
        self.allowed = tuple((self.np_random.random(count) < 0.5).astype(np.int8) for count in self.counts)
        for mask, wanted, start in zip(self.allowed, self.wanted, self.start, strict=True):
            mask[wanted - start] = 1
        return seen, {"action_mask": self.allowed}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.time = 0
        return self._show()

    def step(self, action):
        assert self.action_space.contains(action), action
        if self.masked:
            assert all(mask[id_] for mask, id_ in zip(self.allowed, action - self.start, strict=True))
        self.taken.append(action)
        self.time += 1
        reward = float((action == self.wanted).mean())
        seen, info = self._show()
        return seen, reward, False, self.time >= STEPS, info


class Switches(gymnasium.Env):
    """Two rows of three switches; each that is on pays."""

    action_space = spaces.MultiBinary((2, 3))
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return np.zeros(1, np.float32), float(action.mean()), False, self.time >= STEPS, {}
