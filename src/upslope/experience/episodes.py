"""Episodes as flat columns: each observation once, and at every row what happened behind it.

An episode of T decisions is T + 1 rows. The last of them holds the observation that the episode ended in and no decision; its
``ended`` is `NOT_ACTED`. What follows a decision is therefore always the next row, and nobody who reads rows has to know where
episodes end. Observations and actions are as the environment gave and took them: raw, in its own units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from upslope.packed import Piece, numbers_of
from upslope.types import Ended

NOT_ACTED = -1
"""In ``ended``: the last observation of an episode, at which nobody acted."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of T decisions."""

    observations: np.ndarray
    """``[T + 1, ...]``; of images and numbers rows of bytes, or, given by a user, a dict of arrays."""
    actions: np.ndarray
    """``[T]`` ids from 0, or ``[T, A]`` vectors."""
    rewards: np.ndarray
    """``[T]``"""
    ended: Ended
    """Behind the last decision: `Ended.TERMINATED`, or `Ended.TRUNCATED` by a limit (also where a log merely stops)."""
    propensities: np.ndarray | None = None
    """``[T]``, how likely each action was when it was chosen; ``None`` where nobody wrote it down."""
    action_masks: np.ndarray | None = None
    """``[T + 1, choices]`` booleans: what each observation allowed; none where nothing was forbidden."""
    pieces: tuple[Piece, ...] = ()
    """Of images and numbers packed into rows of bytes: what is where."""

    @property
    def return_(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))

    def part(self, begin: int, end: int, ended: Ended) -> Episode:
        """The decisions from ``begin`` to before ``end``, with what was seen before and behind them."""
        acted, seen = slice(begin, end), slice(begin, end + 1)
        chosen = None if self.propensities is None else self.propensities[acted]
        masks = None if self.action_masks is None else self.action_masks[seen]
        return Episode(self.observations[seen], self.actions[acted], self.rewards[acted], ended, chosen, masks, self.pieces)

    def __len__(self) -> int:
        """Decisions."""
        return len(self.rewards)


@dataclass(frozen=True, eq=False)
class Episodes:
    """Whole episodes, one behind the other. Columns have a row for every observation."""

    observation: np.ndarray
    """``[R, ...]`` float32, or uint8 where there are images."""
    action: np.ndarray
    """``[R]`` int64 or ``[R, A]`` float32; zero at the last row of an episode."""
    reward: np.ndarray
    """``[R]`` float32; zero at the last row of an episode."""
    ended: np.ndarray
    """``[R]`` int8: `Ended` behind each decision, `NOT_ACTED` at the last row of an episode."""
    propensity: np.ndarray | None = None
    """``[R]`` float32, how likely each action was when it was chosen; ``None`` unless all have it. No part of the digest."""
    action_mask: np.ndarray | None = None
    """``[R, choices]`` booleans: what each observation allowed; none where nothing was forbidden."""
    pieces: tuple[Piece, ...] = ()
    """Of images and numbers packed into rows of bytes: what is where."""

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Episodes:
        """Episodes as columns."""
        kept = [episode for episode in episodes if len(episode)]
        if not kept:
            raise ValueError("no episode with a decision in it")
        observation = np.concatenate([each.observations for each in kept])
        discrete = kept[0].actions.ndim == 1
        action = np.concatenate([_with_last(each.actions) for each in kept])
        reward = np.concatenate([_with_last(each.rewards) for each in kept])
        ended = np.concatenate([_endings(each) for each in kept])
        seen = observation if observation.dtype == np.uint8 else observation.astype(np.float32, copy=False)
        known = [_with_last(each.propensities) for each in kept if each.propensities is not None]
        propensity = np.concatenate(known).astype(np.float32) if len(known) == len(kept) else None
        masks = [each.action_masks for each in kept if each.action_masks is not None]
        mask = np.concatenate(masks).astype(bool, copy=False) if masks else None
        action, reward = action.astype(np.int64 if discrete else np.float32), reward.astype(np.float32)
        return cls(seen, action, reward, ended, propensity, mask, kept[0].pieces)

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """The columns that there are."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "pieces"}
        return {name: column for name, column in found.items() if column is not None}

    def with_columns(self, columns: dict[str, Any]) -> Episodes:
        """The same with these columns in place of its own."""
        return replace(self, **columns)

    def numbers(self, rows: np.ndarray | slice) -> np.ndarray:
        """What of the observations is float32, ``[N, D]``; of images alone nothing."""
        seen = self.observation[rows]
        if seen.dtype != np.uint8:
            return seen.reshape(len(seen), -1)
        return numbers_of(seen, self.pieces) if self.pieces else np.zeros((len(seen), 0), np.float32)

    def pixels(self, rows: np.ndarray | slice) -> np.ndarray:
        """What of the observations are images, in bytes ``[N, D]``."""
        seen = self.observation[rows]
        if seen.dtype != np.uint8:
            return np.zeros((len(seen), 0), np.uint8)
        images = [piece.begin for piece in self.pieces if piece.is_image]
        return seen.reshape(len(seen), -1)[:, min(images, default=0) :]

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.action.ndim == 1

    @cached_property
    def decisions(self) -> np.ndarray:
        """Numbers ``[M]`` of the rows at which somebody acted."""
        return np.flatnonzero(self.ended != NOT_ACTED)

    @cached_property
    def starts(self) -> np.ndarray:
        """Number of the first row of each episode."""
        return np.concatenate([[0], np.flatnonzero(self.ended == NOT_ACTED)[:-1] + 1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Decisions in each episode."""
        return np.flatnonzero(self.ended == NOT_ACTED) - self.starts

    @cached_property
    def returns(self) -> np.ndarray:
        """Sum of rewards of each episode."""
        return np.add.reduceat(self.reward.astype(np.float64), self.starts)

    def __len__(self) -> int:
        """Episodes."""
        return len(self.starts)

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(number) for number in range(len(self)))

    def episode(self, number: int) -> Episode:
        """One of them, as views."""
        first, length = int(self.starts[number]), int(self.lengths[number])
        acted, seen = slice(first, first + length), slice(first, first + length + 1)
        ended = Ended(int(self.ended[first + length - 1]))
        chosen = None if self.propensity is None else self.propensity[acted]
        mask = None if self.action_mask is None else self.action_mask[seen]
        return Episode(self.observation[seen], self.action[acted], self.reward[acted], ended, chosen, mask, self.pieces)

    def take(self, numbers: Sequence[int]) -> Episodes:
        """These episodes, in this order."""
        return Episodes.of(self.episode(number) for number in numbers)

    @property
    def bytes(self) -> int:
        return sum(column.nbytes for column in self.by_name.values())


def _with_last(column: np.ndarray) -> np.ndarray:
    return np.concatenate([column, np.zeros_like(column[:1])])


def _endings(episode: Episode) -> np.ndarray:
    ended = np.full(len(episode) + 1, int(Ended.NO), np.int8)
    ended[-2:] = int(episode.ended), NOT_ACTED
    return ended
