"""Flat logs, as D4RL and most robots write them: a row for every step, episodes one behind the other, flags where they end."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from upslope.errors import Remark, UserError
from upslope.experience.episodes import NOT_ACTED, Episode, Episodes
from upslope.experience.packing_logs import pack_columns
from upslope.packed import Piece, arrays_of
from upslope.types import Ended

OBSERVATIONS, ACTIONS, REWARDS, NEXT = "observations", "actions", "rewards", "next_observations"
MASKS, NEXT_MASKS = "action_masks", "next_action_masks"
"""Optional: which choices each observation allowed."""
PROPENSITIES = "propensities"
ENDS = {"terminations": ("terminations", "terminals"), "truncations": ("truncations", "timeouts")}
"""The columns that say where episodes end, each with the name that D4RL has for it."""
WANTED = "observations, actions, rewards, terminations, truncations and, better, next_observations"


def from_flat(columns: Mapping[Any, Any], where: str) -> Episodes:
    """Episodes of flat columns.

    An episode ends behind a row whose ``terminations`` or ``truncations`` (``terminals``, ``timeouts``) is set, a termination
    before a cut where both are. What it ended in stands in ``next_observations``. Without that column nobody needs to know what
    came after a termination; of an episode that was cut, the last row is then taken as the observation it ended in, and its action
    and reward are left out. Where the log merely stops, it was cut.

    Args:
        where: Of what, for messages.

    Raises:
        UserError: if a column is missing, the columns do not fit each other, or no episode ends.
    """
    columns, pieces = _packed(columns, where)
    observation, action, reward = (_column(columns, name, where) for name in (OBSERVATIONS, ACTIONS, REWARDS))
    following = _column(columns, NEXT, where) if NEXT in columns else None
    rows = len(reward)
    terminated, truncated = (_flags(columns, names, rows, where) for names in ENDS.values())
    if terminated is None and truncated is None:
        raise UserError(f"{where} has neither 'terminations' nor 'truncations', which say where episodes end. It wants {WANTED}.")
    reward, observation = _rewards(reward, where), _observations(observation, rows, OBSERVATIONS, where, pieces)
    if following is not None:
        following = _observations(following, rows, NEXT, where, pieces)
        if following.shape != observation.shape:
            told = f"next_observations of shape {following.shape[1:]} beside observations of shape {observation.shape[1:]}"
            raise UserError(f"{where} has {told}; they must be of one shape.")
    ended = np.zeros(rows, np.int8)
    ended[np.zeros(rows, bool) if truncated is None else truncated] = Ended.TRUNCATED
    ended[np.zeros(rows, bool) if terminated is None else terminated] = Ended.TERMINATED
    _check_ends(ended, where)
    action = as_actions(action, rows, where)
    chosen = _propensities(columns, rows, where)
    if following is None:
        if MASKS in columns:
            raise UserError(f"{where} has action_masks and no next_observations; masks need both, and better next_action_masks.")
        return dataclasses.replace(_without_following(observation, action, reward, ended, where, chosen), pieces=pieces)
    _cut_at_jumps(ended, observation, following, where)
    found = _with_propensities(_with_following(observation, action, reward, ended, following), chosen)
    return dataclasses.replace(_with_masks(found, columns, where), pieces=pieces)


def _packed(columns: Mapping[Any, Any], where: str) -> tuple[Mapping[Any, Any], tuple[Piece, ...]]:
    """Columns in which observations that are dicts of arrays have become rows of bytes, and what is where in those."""
    seen, following = columns.get(OBSERVATIONS), columns.get(NEXT)
    if not isinstance(seen, Mapping):
        return columns, ()
    rows, pieces = pack_columns(seen, f"{where} has {OBSERVATIONS}")
    if following is None:
        return {**columns, OBSERVATIONS: rows}, pieces
    behind, others = pack_columns(following if isinstance(following, Mapping) else {"": following}, f"{where} has {NEXT}")
    if others != pieces:
        told = [", ".join(map(str, each)) for each in (others, pieces)]
        raise UserError(f"{where} has {NEXT} of {told[0]} beside {OBSERVATIONS} of {told[1]}; they must be the same.")
    return {**columns, OBSERVATIONS: rows, NEXT: behind}, pieces


def stops_short(columns: Mapping[Any, Any]) -> bool:
    """Whether the log stops in the middle of its last episode."""
    named = [next((name for name in names if name in columns), "") for names in ENDS.values()]
    ended = [np.asarray(columns[name]).reshape(-1).astype(bool) for name in named if name]
    behind = len(ended[0]) - 1 - int(np.flatnonzero(np.any(ended, axis=0))[-1])
    return behind > (0 if NEXT in columns else 1)  # a single row without what followed shows no step, and is left out


def to_flat(episodes: Episodes) -> dict[str, Any]:
    """The columns that `from_flat` reads back to the same episodes: arrays, or, of packed observations, an array for each piece."""
    rows, mask = episodes.decisions, episodes.action_mask
    masks = {} if mask is None else {MASKS: mask[rows], NEXT_MASKS: mask[rows + 1]}
    return {
        OBSERVATIONS: _unpacked(episodes, rows),
        ACTIONS: episodes.action[rows],
        REWARDS: episodes.reward[rows],
        "terminations": episodes.ended[rows] == Ended.TERMINATED,
        "truncations": episodes.ended[rows] == Ended.TRUNCATED,
        NEXT: _unpacked(episodes, rows + 1),
        **masks,
    } | ({} if episodes.propensity is None else {PROPENSITIES: episodes.propensity[rows]})


def _unpacked(episodes: Episodes, rows: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
    seen = episodes.observation[rows]
    return arrays_of(seen, episodes.pieces) if episodes.pieces else seen


def as_actions(action: np.ndarray, rows: int, where: str) -> np.ndarray:
    """Ids ``[N]`` or vectors ``[N, A]`` of what a log calls actions: whole numbers in one column are choices."""
    if len(action) != rows:
        raise UserError(f"{where} has {len(action):,} actions and {rows:,} rewards; each step has one of both.")
    choices = not np.issubdtype(action.dtype, np.floating)
    if choices and action.size == rows:
        return action.reshape(rows).astype(np.int64)
    return action.reshape(rows, -1).astype(np.float32)


def _column(columns: Mapping[Any, Any], name: str, where: str) -> np.ndarray:
    if name not in columns:
        known = ", ".join(map(str, columns)) or "none"
        raise UserError(f"{where} has no {name!r}. It wants {WANTED}; it has {known}.")
    try:
        column = np.asarray(columns[name])
    except ValueError:  # rows of different lengths
        raise UserError(f"{where} has {name!r} with rows of different shapes; they must be of one.") from None
    if not column.ndim:
        raise UserError(f"{where} has {name!r} as a single value; it must have a row for every step.")
    if column.dtype.kind not in "biuf":
        raise UserError(f"{where} has {name} of type {column.dtype}; they must be numbers.")
    if len(column) and not column.size:
        raise UserError(f"{where} has {name} of shape {column.shape}: there is no number in them.")
    return column


def _flags(columns: Mapping[Any, Any], names: tuple[str, ...], rows: int, where: str) -> np.ndarray | None:
    name = next((name for name in names if name in columns), None)
    if name is None:
        return None
    column = _column(columns, name, where)
    if column.size != rows:
        raise UserError(f"{where} has {column.size:,} {name} and {rows:,} rewards; each step has one of both.")
    return column.reshape(rows).astype(bool)


def _propensities(columns: Mapping[Any, Any], rows: int, where: str) -> np.ndarray | None:
    """How likely each action was, where a log says so."""
    if PROPENSITIES not in columns:
        return None
    column = _column(columns, PROPENSITIES, where)
    if column.size != rows:
        raise UserError(f"{where} has {column.size:,} {PROPENSITIES} and {rows:,} rewards; each step has one of both.")
    chance = column.reshape(rows).astype(np.float32)
    if len(wrong := np.flatnonzero(~((chance > 0) & (chance <= 1)))):
        told = f"{where}: row {wrong[0]} has the propensity {chance[wrong[0]]:g}"
        raise UserError(f"{told}; what was chosen had a chance above 0, up to 1.")
    return chance


def _rewards(reward: np.ndarray, where: str) -> np.ndarray:
    if reward.size != len(reward) or not len(reward):
        raise UserError(f"{where} has rewards of shape {reward.shape}; it must be one number for every step, and at least one.")
    return reward.reshape(-1).astype(np.float32)


def _observations(seen: np.ndarray, rows: int, name: str, where: str, pieces: tuple[Piece, ...]) -> np.ndarray:
    if len(seen) != rows:
        # One row more is what an environment gives; across several episodes nobody can say where it belongs.
        raise UserError(f"{where} has {len(seen):,} {name} and {rows:,} rewards; each step has one of both.")
    if pieces or (seen.dtype == np.uint8 and seen.ndim >= 3):
        return seen
    return seen.reshape(rows, -1).astype(np.float32)


def _check_ends(ended: np.ndarray, where: str) -> None:
    if not ended.any():
        raise UserError(
            f"{where}: no episode ends in {len(ended):,} rows. Set 'terminations' in the last row of an episode that is over, or "
            "'truncations' where it was only cut."
        )


def _cut_at_jumps(ended: np.ndarray, observation: np.ndarray, following: np.ndarray, where: str) -> None:
    """An episode cannot go on with another observation than the one it came to: there it was cut, and nobody wrote it down."""
    rows = len(ended)
    if rows < 2:
        return
    goes_on = (following[:-1] == observation[1:]).reshape(rows - 1, -1).all(1)
    # What is not a number equals nothing, itself least of all; the checks will name it.
    unclear = ~np.isfinite(following[:-1].astype(np.float32)).reshape(rows - 1, -1).all(1)
    jumps = np.flatnonzero(~goes_on & ~unclear & (ended[:-1] == Ended.NO))
    if len(jumps):
        ended[jumps] = Ended.TRUNCATED
        told = f"next_observations of row {jumps[0]} is not the observation of row {jumps[0] + 1}, and no end is marked there"
        more = f" (and at {len(jumps) - 1:,} more rows)" if len(jumps) > 1 else ""
        warnings.warn(Remark(f"{where}: {told}{more}. The episode is taken to be cut there."), stacklevel=2)


def _with_following(
    observation: np.ndarray, action: np.ndarray, reward: np.ndarray, ended: np.ndarray, following: np.ndarray
) -> Episodes:
    """Every row, and behind each episode one for the observation it ended in."""
    rows = len(reward)
    ended[-1] = ended[-1] or Ended.TRUNCATED
    last = np.flatnonzero(ended != Ended.NO)
    # Row r of the log stands at r plus the number of episodes before it.
    places = np.arange(rows) + np.searchsorted(last, np.arange(rows), side="left")
    total, tails = rows + len(last), places[last] + 1
    found = Episodes(
        np.empty((total, *observation.shape[1:]), observation.dtype),
        np.zeros((total, *action.shape[1:]), action.dtype),
        np.zeros(total, np.float32),
        np.full(total, NOT_ACTED, np.int8),
    )
    found.observation[places], found.observation[tails] = observation, following[last]
    found.action[places], found.reward[places], found.ended[places] = action, reward, ended
    return found


def _with_propensities(episodes: Episodes, chosen: np.ndarray | None) -> Episodes:
    if chosen is None:
        return episodes
    propensity = np.zeros(len(episodes.ended), np.float32)
    propensity[episodes.decisions] = chosen
    return dataclasses.replace(episodes, propensity=propensity)


def _with_masks(episodes: Episodes, columns: Mapping[Any, Any], where: str) -> Episodes:
    """The same with the log's action masks, if it has any; what nobody wrote of the last observations allows everything."""
    if MASKS not in columns:
        return episodes
    rows = episodes.decisions
    found = {name: _column(columns, name, where) for name in (MASKS, NEXT_MASKS) if name in columns}
    for name, column in found.items():
        if column.ndim != 2 or column.shape != found[MASKS].shape or len(column) != len(rows) or set(np.unique(column)) - {0, 1}:
            raise UserError(f"{where} has {name} of shape {column.shape}; there must be a row of 0 and 1 for every step.")
    mask = np.ones((len(episodes.ended), found[MASKS].shape[1]), bool)
    if NEXT_MASKS in found:
        mask[rows + 1] = found[NEXT_MASKS]
    mask[rows] = found[MASKS]
    return dataclasses.replace(episodes, action_mask=mask)


def _without_following(
    observation: np.ndarray, action: np.ndarray, reward: np.ndarray, ended: np.ndarray, where: str, chosen: np.ndarray | None
) -> Episodes:
    """Episodes whose final observation nobody wrote down."""
    edges = np.flatnonzero(ended != Ended.NO) + 1
    kept: list[Episode] = []
    for rows in np.split(np.arange(len(ended)), edges):
        if len(rows) and ended[rows[-1]] == Ended.TERMINATED:
            # Nothing is learned from what follows a termination, so the last observation may stand in for it.
            seen, acted, how = observation[[*rows, rows[-1]]], rows, Ended.TERMINATED
        elif len(rows) > 1:
            seen, acted, how = observation[rows], rows[:-1], Ended.TRUNCATED
        else:
            continue
        kept.append(Episode(seen, action[acted], reward[acted], how, None if chosen is None else chosen[acted]))
    if not kept:
        raise UserError(f"{where} has no episode of two rows or more. Without next_observations one row shows no step.")
    return Episodes.of(kept)
