"""Spaces of gymnasium as arrays: what an observation becomes, and what a policy gives as an environment takes it.

A Box, a Discrete, a MultiBinary, and every tree of them (Dict, Tuple) becomes one vector of float32, in the order of gymnasium's
``flatten``. An image stays as it is, in bytes. Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.action_masks import MASK

Path = tuple[str | int, ...]
"""Keys from the whole observation to a part of it."""


@dataclass(frozen=True)
class Part:
    """A piece of an observation, and where its numbers are in the vector.

    Fields:
        path: none for an observation that is no tree.
        space: of the piece.
        first: of a Discrete, its smallest value; of anything else nothing.
    """

    path: Path
    space: Any
    begin: int
    end: int
    first: int | None = None

    def of(self, observation: Any) -> Any:
        """The piece; ValueError if the observation has none."""
        try:
            for key in self.path:
                observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"it has no part {'.'.join(map(str, self.path))!r}") from error
        return observation

    def write(self, flat: np.ndarray, value: Any) -> None:
        """Into zeros ``[D]``, or ``[N, D]`` from as many values."""
        if self.first is None:
            room = flat[..., self.begin : self.end]
            numbers = np.asarray(value)
            if numbers.size != room.size:
                raise ValueError(f"{self.told}has {numbers.size} numbers, not {room.size}")
            room[...] = numbers.reshape(room.shape)
            return
        places = np.asarray(value).astype(np.int64) - self.first
        if places.size != flat[..., 0].size or places.min() < 0 or places.max() >= self.end - self.begin:
            raise ValueError(f"{self.told}is {value}, which is not in {self.space}")
        flat.reshape(-1, flat.shape[-1])[np.arange(places.size), self.begin + places.reshape(-1)] = 1.0

    @property
    def told(self) -> str:
        return f"its part {'.'.join(map(str, self.path))!r} " if self.path else "it "


@dataclass(frozen=True)
class ObservationLayout:
    """What an environment's observations become.

    Fields:
        shape: ``(D,)``, or an image's ``(height, width, channels)`` or ``(channels, height, width)`` as the environment has it.
        dtype: float32, or uint8 for images.
        parts: of a vector where its numbers come from; of an image the image.
        left_out: texts, which no policy here can read.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        return self.dtype == np.uint8

    @property
    def channel_axis(self) -> int | None:
        """Of an image: 0 or 2, whichever is shorter; a stack of grey frames is a channel each. Of a vector nothing."""
        return (0 if self.shape[0] < self.shape[2] else 2) if self.is_image else None

    @property
    def is_tree(self) -> bool:
        return bool(self.parts[0].path) or len(self.parts) > 1

    def writer(self) -> Callable[[np.ndarray, Any], None]:
        """What writes an observation into zeros of the layout's shape, or raises ValueError or TypeError if it is none."""
        (first, *others) = self.parts
        if self.is_image:
            return lambda out, observation: _write_image(out, first.of(observation))
        if not others and not first.path:
            return _write_vector if first.first is None else _one_hot_writer(first)
        return self.write

    def write(self, out: np.ndarray, observation: Any) -> None:
        for part in self.parts:
            part.write(out, part.of(observation))

    def rows(self, observations: Any, count: int) -> np.ndarray:
        """So many observations at once, each part with one more axis in front, as ``[count, *shape]``."""
        if self.is_image:
            return np.asarray(self.parts[0].of(observations), np.uint8).reshape(count, *self.shape)
        out = np.zeros((count, *self.shape), np.float32)
        self.write(out, observations)
        return out


def observation_layout(name: str, space: Any) -> ObservationLayout:
    """How observations of a space are written down; a space that cannot be is refused by name."""
    left_out: list[str] = []
    leaves = list(_leaves(name, space, (), left_out))
    if not leaves:
        raise TaskError(f"{name} has observations {space}, in which there is nothing but text; a policy here needs numbers.")
    images = [(path, leaf) for path, leaf in leaves if _is_image(leaf)]
    if images:
        (path, leaf) = images[0]
        if len(leaves) > 1:
            raise TaskError(f"{name} has an image among other observations, {space}; images and numbers together cannot be used. "
                            "Give a function that makes it with one of them only, by gymnasium's FilterObservation.")  # fmt: skip
        if len(leaf.shape) > 3:
            raise TaskError(f"{name} has observations {leaf}, images of {len(leaf.shape)} axes; stacks must be of grey frames, "
                            "as (frames, height, width).")  # fmt: skip
        shape = leaf.shape if len(leaf.shape) == 3 else (*leaf.shape, 1)
        return ObservationLayout(shape, np.dtype(np.uint8), (Part(path, leaf, 0, prod(shape)),), tuple(left_out))
    parts, begin = [], 0
    for path, leaf in leaves:
        size = int(leaf.n) if _is_discrete(leaf) else prod(leaf.shape)
        first = int(leaf.start) if _is_discrete(leaf) else None
        parts.append(Part(path, leaf, begin, begin + size, first))
        begin += size
    return ObservationLayout((begin,), np.dtype(np.float32), tuple(parts), tuple(left_out))


def without_mask(space: Any, choices: int) -> Any:
    """A Dict of observations without its part ``action_mask``, if that has an entry for each choice; any other space as it is."""
    from gymnasium import spaces

    masked = isinstance(space, spaces.Dict) and MASK in space.spaces and prod(space[MASK].shape or (0,)) == choices
    return spaces.Dict({key: each for key, each in space.spaces.items() if key != MASK}) if masked else space


def _leaves(name: str, space: Any, path: Path, left_out: list[str]) -> Iterator[tuple[Path, Any]]:
    """The parts of a tree in gymnasium's order; texts inside of one are left out."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, below in inside:
            yield from _leaves(name, below, (*path, key), left_out)
    elif path and getattr(space.dtype, "kind", "") == "U":  # Text, and what packages make of it
        left_out.append(".".join(map(str, path)))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiBinary)):
        yield path, space
    else:
        where = f" in its part {'.'.join(map(str, path))!r}" if path else ""
        raise TaskError(f"{name} has observations {space}{where}; only Box, Discrete, MultiBinary and a Dict or Tuple of them can "
                        "be used. Give a function that makes it with a wrapper around it.")  # fmt: skip


def _is_discrete(space: Any) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Discrete)


def _is_image(space: Any) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Box) and len(space.shape) >= 2 and space.dtype == np.uint8


def _write_vector(flat: np.ndarray, observation: Any) -> None:
    if flat.shape != np.shape(observation):
        observation = np.reshape(observation, -1)
        if observation.shape != flat.shape:
            raise ValueError(f"it has {len(observation)} numbers")
    flat[:] = observation


def _one_hot_writer(part: Part) -> Callable[[np.ndarray, Any], None]:
    first, size = part.first or 0, part.end

    def write(flat: np.ndarray, observation: Any) -> None:
        place = int(observation) - first
        if not 0 <= place < size:
            raise ValueError(f"{observation} is not in {part.space}")
        flat[place] = 1.0

    return write


def _write_image(out: np.ndarray, observation: Any) -> None:
    image = np.asarray(observation)
    if image.size != out.size or image.dtype != np.uint8:
        raise ValueError(f"it has the shape {image.shape} and the type {image.dtype}, not {out.shape} and uint8")
    out[...] = image.reshape(out.shape)


# -- actions ---------------------------------------------------------------------------------------------------------------


def action_size(name: str, space: object) -> tuple[bool, int]:
    """Whether actions are vectors rather than choices, and how many numbers or choices there are, those of all components."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return False, int(space.n)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return True, int(np.prod(space.shape))
    if components := action_components(space):
        return False, sum(components)
    raise TaskError(f"{name} has actions {space}; only Discrete, MultiDiscrete, MultiBinary and a Box of floats can be used. "
                    "Give a function that makes it with gymnasium's TransformAction around it.")  # fmt: skip


def action_components(space: object) -> tuple[int, ...]:
    """Choices of each component of an action that consists of several: of a MultiDiscrete, or of a MultiBinary, which has two
    each. Of any other space nothing."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(count) for count in np.ravel(space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return (2,) * prod(space.shape)
    return ()


def actions_taken(space: Any, actions: np.ndarray) -> np.ndarray:
    """Actions as a policy gives them, as the environment takes them: clipped, from its start.

    Args:
        actions: Ids ``[B]``, ids of components ``[B, K]``, or vectors ``[B, D]``.
    """
    if not hasattr(space, "low"):
        return actions + int(space.start) if not space.shape else _components_taken(space, actions)
    return np.clip(actions.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype, copy=False)


def _components_taken(space: Any, actions: np.ndarray) -> np.ndarray:
    return (actions.reshape(-1, *space.shape) + getattr(space, "start", 0)).astype(space.dtype, copy=False)
