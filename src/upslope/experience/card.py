"""What is known of a dataset beside its numbers: where it comes from, which environment it is of, and what scores mean there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from upslope import __version__
from upslope.errors import UserError
from upslope.packed import Piece
from upslope.plain_data import JsonDict
from upslope.tasks.spaces import action_components

if TYPE_CHECKING:
    from upslope.experience.episodes import Episodes
    from upslope.tasks.gym import GymTask
    from upslope.tasks.spaces import ObservationLayout

FORMAT = 1
"""Of ``dataset.json``. A reader refuses what is newer than itself."""


@dataclass(frozen=True)
class Space:
    """Observations or actions as they are stored: choices, or arrays with bounds where those are known."""

    shape: tuple[int, ...]
    """Of one of them; empty for choices."""
    dtype: str
    """``"float32"``, ``"uint8"`` for images, ``"int64"`` for choices."""
    n: int | None = None
    """Choices, ids from 0. Of a log that names no environment: as many as occur."""
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    """A number for each entry, or one for all; ``None`` where there is no bound or none is known."""
    pieces: tuple[Piece, ...] = ()
    """Of images and numbers packed into rows of bytes: what is where."""

    @property
    def size(self) -> int:
        """Numbers in one of them, or choices."""
        return int(np.prod(self.shape)) if self.n is None else self.n

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest of each entry, ``[size]`` float32; infinite where there is no bound or none is known."""
        ends = ((self.low, -np.inf), (self.high, np.inf))
        low, high = (np.broadcast_to(np.asarray(end or (other,), np.float32), self.size) for end, other in ends)
        return low, high

    @classmethod
    def of(cls, layout: ObservationLayout) -> Space:
        """Of observations as environments hand them on: a vector, an image, or both packed."""
        if layout.has_images:
            return cls(layout.shape, "uint8", low=(0.0,), high=(255.0,), pieces=layout.pieces)
        ends = [_ends_of(part.space) for part in layout.parts]
        low, high = (np.concatenate(sides) for sides in zip(*ends, strict=True))
        return cls(layout.shape, "float32", low=_bound(low), high=_bound(high))

    @classmethod
    def of_actions(cls, space: Any) -> Space:
        """Of a space of gymnasium from which actions come.

        Raises:
            UserError: if they consist of several choices.
        """
        if action_components(space):
            raise UserError(f"actions {space} are several choices at once, and stored experience holds one choice or a vector. "
                            "ppo learns them from what it samples.")  # fmt: skip
        if hasattr(space, "n"):
            return cls((), "int64", n=int(space.n))
        return cls((int(np.prod(space.shape)),), "float32", low=_bound(space.low), high=_bound(space.high))

    @classmethod
    def seen(cls, column: np.ndarray, pieces: tuple[Piece, ...] = ()) -> Space:
        """Of stored observations or actions, where nothing else is known."""
        if column.ndim == 1:
            return cls((), "int64", n=int(column.max(initial=0)) + 1)
        return cls(tuple(column.shape[1:]), str(column.dtype), pieces=pieces)

    def __str__(self) -> str:
        if self.pieces:
            return ", ".join(map(str, self.pieces))
        return f"{self.n} choices" if self.n is not None else f"{'x'.join(map(str, self.shape))} numbers ({self.dtype})"


def _ends_of(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest of the numbers that a space becomes; choices and bits become zeros and ones."""
    if hasattr(space, "low"):
        return np.asarray(space.low, np.float64).reshape(-1), np.asarray(space.high, np.float64).reshape(-1)
    size = int(np.prod(space.n))
    return np.zeros(size), np.ones(size)


def _bound(ends: np.ndarray) -> tuple[float, ...] | None:
    numbers = np.asarray(ends, np.float64).reshape(-1)
    if not np.isfinite(numbers).all():
        return None
    return (float(numbers[0]),) if (numbers == numbers[0]).all() else tuple(map(float, numbers))


@dataclass(frozen=True)
class Card:
    """What ``dataset.json`` says of a dataset."""

    name: str
    observation: Space
    action: Space
    digest: str
    """SHA-256 of the columns: the same whatever file they are in."""
    episodes: int
    decisions: int
    unfinished: bool = False
    """Whether the last episode merely stops because the log does; its return then says nothing."""
    env: str = ""
    """The task, as for ``--task``, with its physics; empty where nobody said."""
    recipe: str = ""
    """How it was made, as for ``--recipe``; empty for data from elsewhere."""
    seed: int | None = None
    steps: int | None = None
    """Steps that were asked for."""
    origin: str = ""
    """The run that acted, the checkpoint and its digest; or the file that was read."""
    random: float = math.nan
    """Mean return of uniformly random actions, which counts as 0."""
    expert: float = math.nan
    """Mean return that counts as 100."""
    reference_episodes: int = 0
    """Episodes behind each of the two; 0 where they were given."""
    version: str = __version__
    """Of upslope, when it was made."""

    @classmethod
    def of(cls, name: str, episodes: Episodes, digest: str, **known: Any) -> Card:
        """With spaces and counts as the episodes show them, unless more is known."""
        spaces = {"observation": Space.seen(episodes.observation, episodes.pieces), "action": Space.seen(episodes.action)}
        counts = {"episodes": len(episodes), "decisions": len(episodes.decisions)}
        return cls(name=name, digest=digest, **{**spaces, **known, **counts})

    def normalised(self, score: float) -> float:
        """0 for random actions, 100 for the expert; NaN where either is unknown or they are equal."""
        span = self.expert - self.random
        return 100 * (score - self.random) / span if span else math.nan

    def record(self) -> JsonDict:
        """As JSON has it: what is not known is null."""
        found: JsonDict = {"format": FORMAT, **dataclasses.asdict(self)}
        for kind in ("observation", "action"):
            if not found[kind]["pieces"]:
                del found[kind]["pieces"]  # which versions of upslope without them would not read
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in found.items()}

    @classmethod
    def from_record(cls, record: Any, where: str) -> Card:
        """What `record` gave.

        Raises:
            UserError: if it is none, or of a newer format.
        """
        if not isinstance(record, Mapping) or "digest" not in record:
            raise UserError(f"{where} is no card of a dataset.")
        if not isinstance(version := record.get("format", FORMAT), int) or version > FORMAT:
            raise UserError(f"{where} has format {version!r}; this version of upslope reads up to {FORMAT}. Update upslope.")
        known = {field.name for field in dataclasses.fields(cls)}
        told = {key: value for key, value in record.items() if key in known}
        for score in ("random", "expert"):
            told[score] = math.nan if told.get(score) is None else float(told[score])
        try:
            return cls(**{**told, "observation": _space(told["observation"]), "action": _space(told["action"])})
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{where} is no card of a dataset: {problem!r}.") from None


def _space(record: JsonDict) -> Space:
    ends = {side: None if record[side] is None else tuple(map(float, record[side])) for side in ("low", "high")}
    pieces = tuple(Piece(**{**each, "shape": tuple(each["shape"])}) for each in record.get("pieces", ()))
    return Space(**{**record, "shape": tuple(record["shape"]), **ends, "pieces": pieces})


def spaces_of(task: GymTask) -> tuple[Space, Space]:
    """Observations and actions of a task as its data have them."""
    return Space.of(task.layout), Space.of_actions(task.action_space)
