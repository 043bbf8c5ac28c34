"""Worlds of few states, each with its whole table to look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np

from upslope.tasks.worlds.solving import best_of, optimal_values

PATIENT = 0.999
"""Discount of the expert of a world, whose returns are not discounted: it looks about a thousand steps ahead."""


@dataclass(frozen=True, eq=False)
class Table:
    """A Markov decision process, whole.

    Fields:
        move: chance of every next state, ``[S, A, S]``; every row sums to 1.
        payment: reward on the way, ``[S, A, S]``.
        start: chance of every first state, ``[S]``.
        ends: states in which an episode is over, ``[S]``.
    """

    move: np.ndarray
    payment: np.ndarray
    start: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, move: np.ndarray, payment: np.ndarray, start: int | np.ndarray = 0, ends: tuple[int, ...] = ()) -> Table:
        """With the first state or its chances, and the states that end episodes, by number; ``payment`` may be ``[S, A]``."""
        states = len(move)
        first = np.eye(states)[start] if isinstance(start, int) else start
        paid = np.broadcast_to(payment[..., None], move.shape) if payment.ndim == 2 else payment
        return cls(move, paid, first, np.isin(np.arange(states), ends))

    @cached_property
    def transition(self) -> np.ndarray:
        """``[S, A, S]`` as `upslope.tasks.worlds.solving` wants it: what ends an episode leads nowhere."""
        return self.move * ~self.ends

    @cached_property
    def reward(self) -> np.ndarray:
        """The mean reward, ``[S, A]``; nothing in states that are the end."""
        return (self.move * self.payment).sum(2) * ~self.ends[:, None]


class TableWorld(gymnasium.Env[Any, Any]):
    """An environment that moves by a table.

    Args:
        table: All that there is to know.

    Attributes:
        transition: ``[S, A, S]``, chances of next states; what ends an episode is missing from a row.
        reward: ``[S, A]``, the mean reward.
    """

    chance_is_paid = False
    """Whether a payment is the chance of a reward of 1, else it is the reward."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.transition, self.reward = table.transition, table.reward
        states, actions = table.reward.shape
        self.observation_space = gymnasium.spaces.Discrete(states)
        self.action_space = gymnasium.spaces.Discrete(actions)
        self._upto = table.move.cumsum(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self._draw(self.table.start.cumsum())
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        before, self.state = self.state, self._draw(self._upto[self.state, action])
        paid = float(self.table.payment[before, action, self.state])
        if self.chance_is_paid:
            paid = float(self.np_random.random() < paid)
        return self.state, paid, bool(self.table.ends[self.state]), False, {}

    def best_action(self, observation: np.ndarray) -> int:
        """Of the state that a one-hot observation shows, by its exact values."""
        return int(self.best[int(observation.argmax())])

    @cached_property
    def best(self) -> np.ndarray:
        """The best action ``[S]`` of every state; the first of several that are equally good."""
        return best_of(optimal_values(self.transition, self.reward, PATIENT))

    def _draw(self, upto: np.ndarray) -> int:
        """A state, of chances that were summed up; rounding must not lead beyond the last one that can be."""
        return int(np.searchsorted(upto, self.np_random.random() * upto[-1], side="right"))


def at_least(name: str, value: float, least: float) -> None:
    """Refuses a size that no world has."""
    if not value >= least:
        raise ValueError(f"{name}={value}; it must be at least {least}")


def a_chance(name: str, value: float) -> None:
    """Refuses what is no chance."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value}; it must be between 0 and 1")
