"""The smallest environments in which something can be learned from stored experience: a point to be moved to zero."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from upslope.experience.dataset import Dataset
from upslope.experience.episodes import Episode, Episodes
from upslope.types import Ended

STEPS = 20


class PointMass(gymnasium.Env):
    """Moved by up to 0.3 in a step, it pays minus its squared distance from zero.

    Doing nothing returns about -6.7, the best about -0.1.
    """

    observation_space = gymnasium.spaces.Box(np.float32(-3.0), np.float32(3.0), (1,))
    action_space: gymnasium.Space = gymnasium.spaces.Box(np.float32(-1.0), np.float32(1.0), (1,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(-1.0, 1.0), 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def push(self, action: Any) -> float:
        return float(action[0])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = float(np.clip(self.place + 0.3 * self.push(action), -3.0, 3.0))
        self.steps += 1
        return self.seen(), -(self.place**2), False, self.steps == STEPS, {}


class PushedPointMass(PointMass):
    """The same with three choices: left, nothing, right."""

    action_space = gymnasium.spaces.Discrete(3)

    def push(self, action: Any) -> float:
        return float(action) - 1.0


def point_data(discrete: bool, episodes: int = 40, spread: float = 0.6) -> Dataset:
    """Somebody who knows where to go, and is far from certain."""
    env, random, found = PushedPointMass() if discrete else PointMass(), np.random.default_rng(0), []
    for number in range(episodes):
        observations, actions, rewards = [env.reset(seed=number)[0]], [], []
        for _ in range(STEPS):
            wanted = np.clip(-2.0 * observations[-1] + spread * random.standard_normal(1), -1.0, 1.0).astype(np.float32)
            action: Any = int(np.rint(wanted[0])) + 1 if discrete else wanted
            seen, reward, *_ = env.step(action)
            observations.append(seen)
            actions.append(action)
            rewards.append(reward)
        found.append(Episode(np.stack(observations), np.stack(actions), np.array(rewards, np.float32), Ended.TRUNCATED))
    return Dataset.of(Episodes.of(found), "point")
