"""Spaces of gymnasium as arrays: what an observation becomes, and what a policy gives as an environment takes it.

A Box, a Discrete, a MultiBinary, and every tree of them (Dict, Tuple) becomes one vector of float32, in the order of gymnasium's
``flatten``. An image stays as it is, in bytes; a tree with images among other parts is packed into bytes (`upslope.packed`).
Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.packed import NUMBER, Piece, channel_axis, numbers_of, packed_size, packing
from upslope.tasks.action_masks import MASK

Path = tuple[str | int, ...]
"""Keys from the whole observation to a part of it."""


@dataclass(frozen=True)
class Part:
    """A piece of an observation, and where it is in the vector.

    Fields:
        path: none for an observation that is no tree.
        space: of the piece.
        begin, end: its numbers in the vector; of an image in a packed observation its bytes.
        first: of a Discrete, its smallest value; of anything else nothing.
    """

    path: Path
    space: Any
    begin: int
    end: int
    first: int | None = None

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def is_image(self) -> bool:
        return _is_image(self.space)

    def of(self, observation: Any) -> Any:
        """The piece; ValueError if the observation has none."""
        try:
            for key in self.path:
                observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"it has no part {self.name!r}") from error
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

    def write_image(self, out: np.ndarray, observation: Any) -> None:
        """An image of the observation, or of as many as there are rows in ``out``, into their bytes."""
        image = np.asarray(self.of(observation))
        if image.size != out.size or image.dtype != np.uint8:
            wanted = f"{self.space.shape} and uint8"
            raise ValueError(f"{self.told}has the shape {image.shape} and the type {image.dtype}, not {wanted}")
        out[...] = image.reshape(out.shape)

    @property
    def told(self) -> str:
        return f"its part {self.name!r} " if self.path else "it "


@dataclass(frozen=True)
class ObservationLayout:
    """What an environment's observations become.

    Fields:
        shape: ``(D,)``, or an image's ``(height, width, channels)`` or ``(channels, height, width)`` as the environment has it; of
            several pieces packed together ``(bytes,)``.
        dtype: float32, or uint8 for images.
        parts: of a vector where its numbers come from; of an image the image.
        left_out: texts, which no policy here can read.
        pieces: of images and numbers packed together, what is where.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()

    @property
    def has_images(self) -> bool:
        return self.dtype == np.uint8

    @property
    def has_numbers(self) -> bool:
        return not self.has_images or any(not piece.is_image for piece in self.pieces)

    @property
    def is_image(self) -> bool:
        """An image and nothing else."""
        return self.has_images and not self.pieces

    @property
    def channel_axis(self) -> int | None:
        """Of an image which axis are channels; of a vector, or of what is packed, nothing."""
        return channel_axis(self.shape) if self.is_image else None

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """What of observations ``[..., *shape]`` are float32, in which anything could be written."""
        return rows if not self.has_images else numbers_of(rows, self.pieces) if self.pieces else np.zeros(0, np.float32)

    def __str__(self) -> str:
        if self.pieces:
            return ", ".join(map(str, self.pieces))
        return f"images {self.shape}" if self.is_image else f"{prod(self.shape)} numbers"

    @property
    def is_tree(self) -> bool:
        return bool(self.parts[0].path) or len(self.parts) > 1

    def writer(self) -> Callable[[np.ndarray, Any], None]:
        """What writes an observation into zeros of the layout's shape, or raises ValueError or TypeError if it is none."""
        (first, *others) = self.parts
        if self.is_image:
            return lambda out, observation: first.write_image(out, observation)
        if not others and not first.path:
            return _write_vector if first.first is None else _one_hot_writer(first)
        return self.write

    def write(self, out: np.ndarray, observation: Any) -> None:
        numbers = self.numbers(out)
        for part in self.parts:
            if part.is_image and self.pieces:
                part.write_image(out[..., part.begin : part.end], observation)
            else:
                part.write(numbers, part.of(observation))

    def rows(self, observations: Any, count: int) -> np.ndarray:
        """So many observations at once, each part with one more axis in front, as ``[count, *shape]``."""
        if self.is_image:
            return np.asarray(self.parts[0].of(observations), np.uint8).reshape(count, *self.shape)
        out = np.zeros((count, *self.shape), self.dtype)
        self.write(out, observations)
        return out


def observation_layout(name: str, space: Any) -> ObservationLayout:
    """How observations of a space are written down; a space that cannot be is refused by name."""
    left_out: list[str] = []
    leaves = list(_leaves(name, space, (), left_out))
    if not leaves:
        raise TaskError(f"{name} has observations {space}, in which there is nothing but text; a policy here needs numbers.")
    for _, leaf in leaves:
        if _is_image(leaf) and len(leaf.shape) > 3:
            raise TaskError(f"{name} has observations {leaf}, images of {len(leaf.shape)} axes; stacks must be of grey frames, "
                            "as (frames, height, width).")  # fmt: skip
    if len(leaves) > 1 and any(_is_image(leaf) for _, leaf in leaves):
        return _packed_layout(name, leaves, tuple(left_out))
    ((path, leaf), *_) = leaves
    if _is_image(leaf):
        shape = _shape_of(leaf)
        return ObservationLayout(shape, np.dtype(np.uint8), (Part(path, leaf, 0, prod(shape)),), tuple(left_out))
    parts, begin = [], 0
    for path, leaf in leaves:
        parts.append(_numbers(path, leaf, begin))
        begin = parts[-1].end
    return ObservationLayout((begin,), np.dtype(np.float32), tuple(parts), tuple(left_out))


def _packed_layout(name: str, leaves: list[tuple[Path, Any]], left_out: tuple[str, ...]) -> ObservationLayout:
    """Of images beside other parts."""
    by_name = {".".join(map(str, path)): (path, leaf) for path, leaf in leaves}
    if len(by_name) < len(leaves):
        raise TaskError(f"{name} has observations of which two are called alike once dots stand between their keys, among "
                        f"{', '.join(by_name)}; call one of them something else.")  # fmt: skip
    pieces = packing(Piece(piece, _shape_of(leaf), _is_image(leaf)) for piece, (_, leaf) in by_name.items())
    parts = []
    for piece in pieces:
        path, leaf = by_name[piece.name]
        image = Part(path, leaf, piece.begin, piece.end)
        parts.append(image if piece.is_image else _numbers(path, leaf, piece.begin // NUMBER))
    return ObservationLayout((packed_size(pieces),), np.dtype(np.uint8), tuple(parts), left_out, pieces)


def _numbers(path: Path, leaf: Any, begin: int) -> Part:
    return Part(path, leaf, begin, begin + prod(_shape_of(leaf)), int(leaf.start) if _is_discrete(leaf) else None)


def _shape_of(leaf: Any) -> tuple[int, ...]:
    """Of an array that holds it: a grey image has one channel, a choice is one-hot."""
    if _is_discrete(leaf):
        return (int(leaf.n),)
    return (*leaf.shape, 1) if _is_image(leaf) and len(leaf.shape) == 2 else leaf.shape or (1,)


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
