"""The one sampler: rows, n-step rows, chunks of actions and windows of history out of stored episodes.

Nobody else looks at where episodes end. Every rule here is a consequence of one: a step never leads out of its episode, and only a
termination means that nothing more was to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from upslope.experience.episodes import NOT_ACTED, Episodes
from upslope.experience.store import Rows
from upslope.types import Ended


class DrawnRows(NamedTuple):
    """Decisions with what came of them, ``[M, ...]``."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    """Of the step, or of n steps, discounted and summed."""
    discount: np.ndarray
    """What the value behind the row is multiplied with: gamma to the number of its steps, 0 behind a termination."""
    following: np.ndarray
    """The observation behind the row."""
    ended: np.ndarray
    """`Ended` behind its last step."""
    rows: np.ndarray
    """Their numbers in the store."""


class Chunk(NamedTuple):
    """Several actions from each decision on."""

    actions: np.ndarray
    """``[M, H, ...]``; zero where the episode had ended."""
    valid: np.ndarray
    """``[M, H]`` booleans: somebody acted there, in the same episode."""


class Window(NamedTuple):
    """The last steps up to and with each decision, padded on the left."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    valid: np.ndarray
    """``[M, K]`` booleans: False on padding."""


def draw(store: Rows, numbers: np.ndarray, gamma: float, n_steps: int = 1) -> DrawnRows:
    """The decisions with these numbers (0 is the oldest), each with up to ``n_steps`` steps behind it.

    A row stops early where its episode ends, and at the newest observation there is; the discount says after how many steps.
    """
    columns, rows = store.columns, store.decision_rows(numbers)
    place = store.place(rows)
    reward, ended = columns.reward[place].astype(np.float64), columns.ended[place]
    behind, steps = rows + 1, np.ones(len(rows), np.int64)
    going = ended == Ended.NO
    for _ in range(1, n_steps):
        if not going.any():
            break
        here = store.place(behind)
        going &= columns.ended[here] != NOT_ACTED  # the newest observation: nobody has acted there yet
        reward += np.where(going, gamma**steps * columns.reward[here], 0.0)
        ended = np.where(going, columns.ended[here], ended)
        behind, steps = behind + going, steps + going
        going &= ended == Ended.NO
    discount = np.where(ended == Ended.TERMINATED, 0.0, gamma ** steps.astype(np.float64))
    return DrawnRows(
        store.observations(rows),
        columns.action[place],
        reward.astype(np.float32),
        discount.astype(np.float32),
        store.observations(behind),
        ended,
        rows,
    )


def chunk(store: Rows, numbers: np.ndarray, length: int) -> Chunk:
    """``length`` actions from each decision on; those behind an end belong to nobody."""
    columns, rows = store.columns, store.decision_rows(numbers)
    valid = np.zeros((len(rows), length), bool)
    actions = np.zeros((len(rows), length, *columns.action.shape[1:]), columns.action.dtype)
    going = np.ones(len(rows), bool)
    for position in range(length):
        # Where an episode has ended, the rows behind it may be another's or not yet written: nobody looks at them.
        here = store.place(np.where(going, rows + position, rows))
        going = going & (columns.ended[here] != NOT_ACTED)
        valid[:, position] = going
        actions[going, position] = columns.action[here[going]]
        going = going & (columns.ended[here] == Ended.NO)
    return Chunk(actions, valid)


def window(store: Rows, numbers: np.ndarray, length: int) -> Window:
    """The ``length`` steps up to each decision, which stands last; where its episode was younger, padding comes first."""
    columns, rows = store.columns, store.decision_rows(numbers)
    shape = (len(rows), length)
    seen = store.observations(rows)
    made = [np.zeros((*shape, *each.shape[1:]), each.dtype) for each in (seen, columns.action, columns.reward)]
    valid = np.zeros(shape, bool)
    going = np.ones(len(rows), bool)
    for back in range(length):
        wanted = rows - back
        going = going & (wanted >= store.first_row)
        here = store.place(np.where(going, wanted, rows))
        going = going & (columns.ended[here] != NOT_ACTED)
        position = length - 1 - back
        valid[:, position] = going
        made[0][going, position] = store.observations(np.where(going, wanted, rows)[going])
        for into, column in zip(made[1:], (columns.action, columns.reward), strict=True):
            into[going, position] = column[here[going]]
    return Window(made[0], made[1], made[2], valid)


def returns_to_go(episodes: Episodes, gamma: float) -> np.ndarray:
    """Discounted sum ``[R]`` of the rewards from each row to the end of its episode.

    Where a limit cut the episode nothing is added for what would have come: these are the returns that were seen.
    """
    found = np.zeros(len(episodes.reward), np.float64)
    longest = int(episodes.lengths.max())
    starts, lengths = episodes.starts, episodes.lengths
    running = np.zeros(len(starts))
    for position in range(longest - 1, -1, -1):  # all episodes at once, from their ends
        there = lengths > position
        rows = starts[there] + position
        running[there] = episodes.reward[rows] + gamma * running[there]
        found[rows] = running[there]
    return found.astype(np.float32)


def joined(parts: Sequence[DrawnRows]) -> DrawnRows:
    """Rows of several stores as one."""
    if len(parts) == 1:
        return parts[0]
    return DrawnRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
