"""A robot that nobody puts back: a point is pushed to a goal, and then home again, in turns.

upslope train serl there_and_back.py:pair --data there-and-back.npz --test-task there_and_back.py:there
"""

import gymnasium
import numpy as np

import upslope as up

HOME, GOAL = np.array([-0.7, -0.7]), np.array([0.7, 0.7])


class Point(gymnasium.Env):
    """Pays 1 within 0.15 of the goal, which is the end; else nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = HOME + self.np_random.uniform(-0.2, 0.2, 2)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.1 * np.clip(action, -1, 1), -1, 1)
        there = bool(np.linalg.norm(self.place - GOAL) < 0.15)
        return self.place.astype(np.float32), float(there), there, False, {}

    def get_state(self):  # with these two an interrupted run goes on where it was
        return self.place

    def set_state(self, numbers):
        self.place = numbers


def is_back(observation):
    return np.linalg.norm(observation - HOME) < 0.2


def pair():
    """There and back without a reset."""
    return up.reset_free(Point(), backward=is_back, steps=50)


def there():
    """The way there alone, from home each time: where the policy is judged."""
    return up.reset_free(Point(), backward=is_back, steps=50, forward_only=True)


def demonstrate(file, env, episodes=40):
    """Somebody who knows the way writes a log."""
    names = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")
    log, random = {name: [] for name in names}, np.random.default_rng(0)
    for episode in range(episodes):
        seen, ended = env.reset(seed=episode)[0], False
        while not ended:
            aim = HOME if seen[-1] else GOAL
            action = np.clip(8 * (aim - seen[:2]) + random.normal(0, 0.2, 2), -1, 1).astype(np.float32)
            following, reward, terminated, truncated, _ = env.step(action)
            for name, value in zip(names, (seen, action, reward, terminated, truncated, following), strict=True):
                log[name].append(value)
            seen, ended = following, terminated or truncated
    np.savez(file, **{name: np.array(column) for name, column in log.items()})
