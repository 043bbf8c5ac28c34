"""Who acts while data are made. A behaviour is told when an episode begins, and then answers observations with actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from upslope.errors import UserError
from upslope.tasks.gym import GymTask


class Behaviour(Protocol):
    """Acts in one environment."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        """A new episode begins.

        Args:
            simulator: The environment without wrappers, for those who need to know more than they see.
            observation: The first one.
            rng: For all that is drawn in this episode.
        """

    def act(self, observation: np.ndarray) -> Any:
        """An id from 0, or a vector ``[A]`` in the environment's units."""


def propensity(who: Any, observation: np.ndarray, action: int) -> float | None:
    """How likely a behaviour is to choose this action where it sees this; ``None`` where it cannot say.

    Behaviours with a method ``propensity(observation, action)`` can. Of a controller that is certain it is 1 or 0, which its
    ``act`` tells: it is asked a second time, and must not change by that.
    """
    if hasattr(who, "propensity"):
        return who.propensity(observation, action)
    return float(int(who.act(observation)) == action) if getattr(who, "certain", False) else None


class RandomActions:
    """Uniform over the action space, or over the middle of it.

    Args:
        share: Of the range of every number, about its middle; of choices, the first so many.
    """

    def __init__(self, task: GymTask, share: float = 1.0) -> None:
        self.task, space = task, task.action_space
        self.low, self.high, self.choices = np.zeros(0), np.zeros(0), 0
        if not task.continuous:
            self.choices = max(1, round(share * task.action_size))
            return
        low, high = (np.asarray(end, np.float64).reshape(-1) for end in (space.low, space.high))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UserError(f"{task.name} has actions without bounds, {space}; nobody can draw uniformly among them.")
        middle, half = (low + high) / 2, (high - low) / 2 * share
        self.low, self.high = middle - half, middle + half

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.rng = rng

    def act(self, observation: np.ndarray) -> Any:
        return self.rng.uniform(self.low, self.high) if self.task.continuous else int(self.rng.integers(self.choices))

    def propensity(self, observation: np.ndarray, action: int) -> float:
        return float(action < self.choices) / self.choices


class Within:
    """Another's actions, moved into what `RandomActions` with this share would draw from."""

    def __init__(self, inner: Behaviour, range_: RandomActions) -> None:
        self.inner, self.range = inner, range_

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.inner.begin(simulator, observation, rng)

    def act(self, observation: np.ndarray) -> Any:
        wanted = self.inner.act(observation)
        if self.range.task.continuous:
            return np.clip(wanted, self.range.low, self.range.high)
        return min(int(wanted), self.range.choices - 1)


class Sometimes:
    """One of two, chosen anew at every step.

    Args:
        other: Acts with the chance that ``chance(observation)`` says; where it says true or false nothing is drawn.
    """

    def __init__(self, usual: Behaviour, other: Behaviour, chance: Callable[[np.ndarray], float | bool]) -> None:
        self.usual, self.other, self.chance = usual, other, chance

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.rng = rng
        self.usual.begin(simulator, observation, rng)
        self.other.begin(simulator, observation, rng)

    def act(self, observation: np.ndarray) -> Any:
        # Both are asked, so that one with a memory keeps up.
        usual = self.usual.act(observation)
        chance = self.chance(observation)
        turn = chance if isinstance(chance, bool) else self.rng.random() < chance
        return self.other.act(observation) if turn else usual

    def propensity(self, observation: np.ndarray, action: int) -> float | None:
        sides = [propensity(who, observation, action) for who in (self.usual, self.other)]
        chance = self.chance(observation)
        return None if sides[0] is None or sides[1] is None else (1 - chance) * sides[0] + chance * sides[1]


class PolicyActor(Protocol):
    """A policy's weights as they stand, made to pick actions: what ``policy.acting()`` gives."""

    def output(self, observation: np.ndarray) -> np.ndarray:
        """What the network says to observations ``[B, ...]``."""

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions for it: normal noise ``[B, A]`` for vectors, uniform ``[B]`` for choices."""


class PolicyActions:
    """A trained policy, its actions drawn as in training.

    Args:
        observations: Shows the policy what it learned to see; ``None`` shows it what the environment gives.
    """

    def __init__(self, task: GymTask, actor: PolicyActor, observations: Callable[[np.ndarray], np.ndarray] | None) -> None:
        self.task, self.actor, self.observations = task, actor, observations

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.rng = rng

    def act(self, observation: np.ndarray) -> Any:
        seen = observation[None] if self.observations is None else self.observations(observation[None])
        noise: np.ndarray = self.rng.random(1)
        if self.task.continuous:
            noise = self.rng.standard_normal((1, self.task.action_size)).astype(np.float32)
        return self.actor.choose(self.actor.output(seen), noise)[0]
