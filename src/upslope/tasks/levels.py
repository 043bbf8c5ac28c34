"""Levels: ``gym:Pendulum-v1:levels.gravity=[8,12]`` gives every episode a physics of its own, drawn from ranges.

A level is what an episode is drawn by: values of the simulator's parameters (`upslope.tasks.physics` has their names), and with
``levels.seed=[0,99]`` the seed it begins with, which in environments that are laid out at random is the layout. Training draws
levels by counters, evaluation goes through a fixed set of them, spread evenly over the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.runtime.hashing import stable_hash
from upslope.tasks.physics import PARAMS, Change, apply_change, found_parameter

LEVELS = "levels."
"""How options begin that are ranges of levels."""
SEED = "seed"
MOST_SEEDS = 1 << 32
"""Seeds that environments take are below it."""


@dataclass(frozen=True)
class Level:
    """What an episode is played in: changes of the physics, and the seed it begins with where that is part of it."""

    changes: tuple[Change, ...] = ()
    seed: int | None = None

    def values(self) -> JsonDict:
        """By name, for people: numbers of six digits, and factors as in ``1.5x``."""
        found: JsonDict = {
            change.name: f"{change.value:.6g}x" if change.relative else float(f"{change.value:.6g}") for change in self.changes
        }
        return found if self.seed is None else {**found, SEED: self.seed}

    def task_id(self, task: str) -> int:
        """A hash of the level, the same in every step, run and process."""
        exact = [f"{change.name}={change.value!r}{'x' if change.relative else ''}" for change in self.changes]
        return stable_hash("/".join([task, *exact, *([] if self.seed is None else [f"{SEED}={self.seed}"])]))


@dataclass(frozen=True)
class Axis:
    """Where one parameter of a level lies: in a range, or among choices.

    Fields:
        values: the ends of the range, or all choices.
        relative: they are factors of what the simulator has.
    """

    name: str
    values: tuple[float, ...]
    choices: bool = False
    relative: bool = False

    def at(self, share: float) -> float:
        """The value below which this share of the levels lies, in [0, 1)."""
        if self.choices:
            return self.values[int(share * len(self.values))]
        low, high = self.values
        return math.floor(low + share * (high + 1 - low)) if self.name == SEED else low + share * (high - low)

    def change(self, value: float) -> Change:
        return Change(self.name, value, self.relative)

    def __str__(self) -> str:
        texts = [self.change(value).amount for value in self.values]
        return f"{LEVELS}{self.name}={'/'.join(texts) if self.choices else f'[{texts[0]},{texts[1]}]'}"


@dataclass(frozen=True)
class Levels:
    """The levels of a task; false where it has none."""

    axes: tuple[Axis, ...] = ()
    task: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, Any], task: str) -> Levels:
        """Of all the options of a task those that are ranges of levels.

        Raises:
            TaskError: if one of them is no range and no choice, or its parameter is set as well.
        """
        found = {key.removeprefix(LEVELS): value for key, value in options.items() if key.startswith(LEVELS)}
        for name in found:
            if f"{PARAMS}{name}" in options:
                raise TaskError(f"{task}: {PARAMS}{name} sets what {LEVELS}{name} draws anew in each episode. Leave one out.")
        return cls(tuple(_axis(name, value, task) for name, value in sorted(found.items())), task)

    def __bool__(self) -> bool:
        return bool(self.axes)

    def __str__(self) -> str:
        return ",".join(map(str, self.axes))

    def draw(self, number: int) -> Level:
        """The level of this number: uniform over the ranges, and a function of the number alone."""
        return self._at(np.random.default_rng(number).random(len(self.axes)))

    def spread(self, number: int, count: int) -> Level:
        """The ``number``-th of ``count`` levels that are spread evenly: each range is gone through in ``count`` equal parts, of
        which it takes the middles (a Latin hypercube, the same for everybody)."""
        return self._at([(order[number] + 0.5) / count for order in _orders(len(self.axes), count)])

    def _at(self, shares: Sequence[float] | np.ndarray) -> Level:
        found = {axis: axis.at(float(share)) for axis, share in zip(self.axes, shares, strict=True)}
        seed = next((int(value) for axis, value in found.items() if axis.name == SEED), None)
        return Level(tuple(axis.change(value) for axis, value in found.items() if axis.name != SEED), seed)

    @property
    def physics(self) -> tuple[Axis, ...]:
        """Those of the axes that change the simulator."""
        return tuple(axis for axis in self.axes if axis.name != SEED)

    def check(self, env: Any) -> None:
        """Tries the ends of every range on an environment that was just made, and leaves it as it was.

        Raises:
            TaskError: if it has no such parameter, cannot have such values, or takes other actions with them.
        """
        if not self.physics:
            return
        simulator, space, settable = env.unwrapped, env.action_space, LevelPhysics(env, self)
        for axis in self.physics:
            for value in axis.values:
                settable.restore()
                apply_change(simulator, axis.change(value), str(axis), self.task)
                if env.action_space != space:
                    raise TaskError(
                        f"{self.task}: {axis} changes which actions there are, and a policy has one set of them. Set it for all "
                        f"episodes: {PARAMS}{axis.name}={axis.change(axis.values[0]).amount}."
                    )
        settable.restore()


class LevelPhysics:
    """The simulator of one environment, whose parameters change from level to level.

    Factors are of what it had when this was made, not of what the last level left.
    """

    def __init__(self, env: Any, levels: Levels) -> None:
        self.simulator, self.task = env.unwrapped, levels.task
        self._parameters = {axis.name: found_parameter(self.simulator, axis.name, LEVELS, levels.task) for axis in levels.physics}
        self._usual = {name: parameter.read(self.simulator) for name, parameter in self._parameters.items()}

    def set(self, level: Level) -> None:
        """The simulator as the level has it."""
        for change in level.changes:
            self._parameters[change.name].write(self.simulator, self._usual[change.name])
            apply_change(self.simulator, change, f"{LEVELS}{change.name}={change.amount}", self.task)

    def restore(self) -> None:
        """The simulator as it was."""
        for name, parameter in self._parameters.items():
            parameter.write(self.simulator, self._usual[name])
            parameter.change(self.simulator, 1.0, True)  # what depends on it follows


@lru_cache
def _orders(axes: int, count: int) -> list[list[int]]:
    """For each axis in which order its parts are taken: the first by size, the others as fixed numbers have it."""
    return [list(range(count)) if not axis else np.random.default_rng(axis).permutation(count).tolist() for axis in range(axes)]


def _axis(name: str, value: object, task: str) -> Axis:
    """An option as it was given: a list of two, ``[0.8x,1.2x]``, ``[0,100)``, or ``0.5/1/2``."""
    text = str(list(value) if isinstance(value, tuple) else value).replace(" ", "")
    inside = text[1:-1] if text.startswith("[") and text.endswith(("]", ")")) else ""
    words = inside.split(",") if inside else text.split("/")
    numbers = [_number(word.removesuffix("x")) for word in words]
    relative = {word.endswith("x") for word in words}
    right = len(words) == 2 if inside else len(words) > 1
    if not right or len(relative) > 1 or not all(map(math.isfinite, numbers)):
        raise TaskError(
            f"{task}: {LEVELS}{name} is {shown(value)}; it must be a range, as in {LEVELS}gravity=[8,12] or "
            f"{LEVELS}gravity=[0.8x,1.2x], or choices, as in {LEVELS}length=0.5/1/2. One value for all is {PARAMS}{name}=..."
        )
    axis = Axis(name, tuple(numbers), choices=not inside, relative=True in relative)
    return _seeds(axis, text, task) if name == SEED else _ascending(axis, text, task)


def _ascending(axis: Axis, text: str, task: str) -> Axis:
    if not axis.choices and axis.values[0] >= axis.values[1]:
        raise TaskError(f"{task}: {LEVELS}{axis.name} is {text}; a range goes from a smaller value to a larger one.")
    if len(set(axis.values)) < len(axis.values):
        raise TaskError(f"{task}: {LEVELS}{axis.name} is {text}, which names a value twice.")
    return axis


def _seeds(axis: Axis, text: str, task: str) -> Axis:
    """Whole numbers from 0; in ``[0,100)`` the last one is 99."""
    values = axis.values
    if axis.relative or any(value != int(value) or not 0 <= value <= MOST_SEEDS for value in values):
        raise TaskError(f"{task}: {LEVELS}{SEED} is {text}; seeds are whole numbers from 0 on, as in {LEVELS}{SEED}=[0,99].")
    last = values[-1] - text.endswith(")")
    return _ascending(Axis(SEED, tuple(float(int(value)) for value in (*values[:-1], last)), axis.choices), text, task)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
