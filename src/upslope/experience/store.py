"""The replay store: what a run has seen, row by row as it happens, the oldest forgotten first.

Each environment writes into a lane of its own, in the layout of `upslope.experience.episodes`: an observation is one row, and what
follows a decision is the next row. The last row of a lane is the observation that will be acted on next; it counts as a decision
once somebody acted there. Rows are numbered for good, so a number stays valid until its row is forgotten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from upslope.experience.episodes import NOT_ACTED, Episodes
from upslope.types import Ended

GROWTH = 4096
"""Rows that a lane begins with; it doubles until it holds what it is to remember."""


class Rows(Protocol):
    """Rows that a sampler can read: of a dataset, or of one environment's lane."""

    @property
    def columns(self) -> Episodes:
        """The stored columns; `place` says where in them a row is."""

    @property
    def decision_count(self) -> int:
        """Decisions that can be drawn."""

    @property
    def first_row(self) -> int:
        """Number of the oldest row that is there."""

    def decision_rows(self, numbers: np.ndarray) -> np.ndarray:
        """Row numbers of the decisions with these numbers, of which the oldest is 0."""

    def place(self, rows: np.ndarray) -> np.ndarray:
        """Where in the columns rows are."""

    def observations(self, rows: np.ndarray) -> np.ndarray:
        """What was seen at rows, ``[M, ...]``."""


class DatasetRows:
    """A dataset's episodes as rows."""

    first_row = 0

    def __init__(self, episodes: Episodes):
        self.columns = episodes
        self._decisions = episodes.decisions

    @property
    def decision_count(self) -> int:
        return len(self._decisions)

    def decision_rows(self, numbers: np.ndarray) -> np.ndarray:
        return self._decisions[numbers]

    def place(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def observations(self, rows: np.ndarray) -> np.ndarray:
        return self.columns.observation[rows]


class Lane:
    """What one environment has shown: a ring of the last ``capacity`` decisions and the observations around them.

    Args:
        observation: Its shape and kind of number.
        action: The shape of an action, empty for a choice.
        frames: In an observation, along its first axis, all but the newest of which were in the last one (an episode begins with
            as many of its first). Each is kept once.
    """

    def __init__(
        self, observation: tuple[tuple[int, ...], Any], action: tuple[int, ...], discrete: bool, capacity: int, frames: int = 1
    ):
        shape, kind = observation
        shape = shape[1:] if frames > 1 else shape
        self.capacity, self.frames = capacity, frames
        size = min(GROWTH, capacity + 1 + frames)
        self.columns = Episodes(
            np.zeros((size, *shape), kind),
            np.zeros((size, *action), np.int64 if discrete else np.float32),
            np.zeros(size, np.float32),
            np.full(size, NOT_ACTED, np.int8),
        )
        self._row_of = np.zeros(min(GROWTH, capacity), np.int64)
        self.rows = 0
        """Rows ever written; the last of them is the observation to act on next."""
        self.acted = 0
        """Decisions ever written."""
        self._forgotten = 0

    @property
    def decision_count(self) -> int:
        return self.acted - self._forgotten

    @property
    def first_row(self) -> int:
        return int(self._row_of[self._forgotten % len(self._row_of)]) if self.decision_count else max(self.rows - 1, 0)

    def decision_rows(self, numbers: np.ndarray) -> np.ndarray:
        return self._row_of[(self._forgotten + numbers) % len(self._row_of)]

    def place(self, rows: np.ndarray) -> np.ndarray:
        return rows % len(self.columns.reward)

    def observations(self, rows: np.ndarray) -> np.ndarray:
        """What was seen at rows, ``[M, ...]``, put together of its frames."""
        return self.columns.observation[self.place(self.frame_rows(rows))]

    def frame_rows(self, rows: np.ndarray) -> np.ndarray:
        """The rows whose frames make what was seen at rows, ``[M, frames]``; of observations of one frame the rows themselves."""
        if self.frames == 1:
            return rows
        found = np.empty((len(rows), self.frames), np.int64)
        found[:, -1] = rows
        for back in range(1, self.frames):
            before = rows - 1
            inside = (before >= 0) & (self.columns.ended[self.place(before)] != NOT_ACTED)
            rows = np.where(inside, before, rows)
            found[:, -1 - back] = rows
        return found

    @property
    def oldest_row(self) -> int:
        """The first row that something remembered is put together of."""
        return self._with_frames(self.first_row)

    def begin(self, observation: np.ndarray, mask: np.ndarray | None = None) -> None:
        """A new episode begins; what ran before, if it did not end by itself, is cut.

        Args:
            mask: ``[choices]``, what the observation allows; with none, nothing is ever forbidden here.
        """
        if mask is not None:
            self.keep_masks(len(mask))
        self.settle()
        self._append(observation, mask)

    def keep_masks(self, choices: int) -> None:
        """There will be an action mask of so many entries beside every observation; there is none yet."""
        if self.columns.action_mask is None:
            self.columns = replace(self.columns, action_mask=np.ones((self._size, choices), bool))

    def add(self, action: np.ndarray, reward: float, ended: int, following: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Somebody acted on the last observation, and this came of it; ``mask`` is what the following one allows."""
        last = (self.rows - 1) % self._size
        columns = self.columns
        columns.action[last], columns.reward[last], columns.ended[last] = action, reward, ended
        if self.decision_count == self.capacity:
            self._forgotten += 1
        self._grow_decisions()
        self._row_of[self.acted % len(self._row_of)] = self.rows - 1
        self.acted += 1
        self._append(following, mask)

    def refill(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        ended: np.ndarray,
        action_mask: np.ndarray | None = None,
    ) -> None:
        """Takes rows that were written before, in place of all it has; the running episode is over."""
        if action_mask is not None:
            self.keep_masks(action_mask.shape[1])
        acted = np.flatnonzero(ended != NOT_ACTED)
        self._forgotten = max(len(acted) - self.capacity, 0)
        first = self._with_frames(int(acted[self._forgotten])) if len(acted) else len(reward)
        self.rows, self.acted, kept = len(reward), len(acted), np.arange(first, len(reward))
        size = max(self._size, len(kept) + 1)
        columns = []
        given = [column for column in (observation, action, reward, ended, action_mask) if column is not None]
        for column, old in zip(given, self._all_columns(), strict=True):
            larger = np.zeros((size, *old.shape[1:]), old.dtype)
            larger[kept % size] = column[first:]
            columns.append(larger)
        self.columns = self.columns.with_columns(dict(zip(self.columns.by_name, columns, strict=True)))
        remembered = np.arange(self._forgotten, self.acted)
        self._row_of = np.zeros(max(len(self._row_of), min(len(remembered), self.capacity)), np.int64)
        self._row_of[remembered % len(self._row_of)] = acted[self._forgotten :]

    def settle(self) -> None:
        """The running episode ends here, cut; an observation that nobody acted on is dropped."""
        if self.rows and self._fresh():
            self.rows -= 1
        elif self.rows and self.columns.ended[(self.rows - 2) % self._size] == Ended.NO:
            self.columns.ended[(self.rows - 2) % self._size] = Ended.TRUNCATED

    def _fresh(self) -> bool:
        """Whether the last row is an observation that begins an episode."""
        return self.rows == 1 or self.columns.ended[(self.rows - 2) % self._size] == NOT_ACTED

    def _all_columns(self) -> tuple[np.ndarray, ...]:
        return tuple(self.columns.by_name.values())

    @property
    def _size(self) -> int:
        return len(self.columns.reward)

    def _with_frames(self, row: int) -> int:
        """The first row that an observation is put together of."""
        return max(row - self.frames + 1, 0)

    def _append(self, observation: np.ndarray, mask: np.ndarray | None) -> None:
        if self.rows - self._with_frames(self.first_row) >= self._size:
            self._grow()
        place = self.rows % self._size
        self.columns.observation[place] = observation if self.frames == 1 else observation[-1]
        self.columns.ended[place] = NOT_ACTED
        self.columns.action[place], self.columns.reward[place] = 0, 0
        if self.columns.action_mask is not None:
            self.columns.action_mask[place] = mask
        self.rows += 1

    def _grow(self) -> None:
        """Twice the room; rows keep their numbers, so each goes to where the larger ring has it."""
        # Behind its capacity of decisions a lane needs a row more for each episode, and how many those are nobody knows beforehand.
        size = min(2 * self._size, max(self.capacity, self._size) + self.capacity // 16 + 1 + self.frames)
        kept = np.arange(self._with_frames(self.first_row), self.rows)
        made = []
        for column in self._all_columns():
            larger = np.zeros((size, *column.shape[1:]), column.dtype)
            larger[kept % size] = column[kept % len(column)]
            made.append(larger)
        self.columns = self.columns.with_columns(dict(zip(self.columns.by_name, made, strict=True)))

    def _grow_decisions(self) -> None:
        size = len(self._row_of)
        if self.decision_count < size or size == self.capacity:
            return
        larger = np.zeros(min(2 * size, self.capacity), np.int64)
        kept = np.arange(self._forgotten, self.acted)
        larger[kept % len(larger)] = self._row_of[kept % size]
        self._row_of = larger

    @property
    def bytes(self) -> int:
        return self.columns.bytes + self._row_of.nbytes


class ReplayStore:
    """The lanes of several environments."""

    def __init__(
        self, observation: tuple[tuple[int, ...], Any], action: tuple[int, ...], discrete: bool, capacity: int, lanes: int,
        frames: int = 1,
    ):  # fmt: skip
        each = max(1, capacity // lanes)
        self.lanes = [Lane(observation, action, discrete, each, frames) for _ in range(lanes)]

    @property
    def decision_count(self) -> int:
        return sum(lane.decision_count for lane in self.lanes)

    @property
    def bytes(self) -> int:
        return sum(lane.bytes for lane in self.lanes)
