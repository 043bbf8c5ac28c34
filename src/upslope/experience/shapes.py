"""Whether episodes are what they should be: as many rows as they need, of one shape, with ends where they end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from upslope.errors import UserError
from upslope.experience.episodes import NOT_ACTED, Episode, Episodes
from upslope.experience.packing_logs import pack_columns
from upslope.fields import shown
from upslope.types import Ended

COLUMNS: Mapping[str, tuple[str, Callable[[np.ndarray], bool]]] = {
    "observation": (
        "float32 or uint8 [R, ...]",
        lambda it: it.dtype in (np.float32, np.uint8) and it.ndim >= 2 and it[:1].size > 0,
    ),
    "action": (
        "int64 [R], or float32 [R, A]",
        lambda it: (str(it.dtype), it.ndim) in (("int64", 1), ("float32", 2)) and it[:1].size > 0,
    ),
    "reward": ("float32 [R]", lambda it: it.dtype == np.float32 and it.ndim == 1),
    "ended": ("int8 [R]", lambda it: it.dtype == np.int8 and it.ndim == 1),
}
"""What each must be, in words and as a test."""


def check_columns(episodes: Episodes, name: str) -> None:
    """Whether columns are whole episodes: as many rows each, every episode ended behind its last decision and only there."""
    for column, (wanted, fits) in COLUMNS.items():
        found = getattr(episodes, column)
        if type(found) is not np.ndarray or not fits(found):
            kind = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else shown(found)
            raise UserError(f"{name} has the column {column} as {kind}; it must be {wanted}. Episodes.of makes it so.")
    mask = episodes.action_mask
    if mask is not None and (type(mask) is not np.ndarray or mask.dtype != bool or mask.ndim != 2 or not mask[:1].size):
        kind = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else shown(mask)
        raise UserError(f"{name} has the column action_mask as {kind}; it must be bool [R, choices]. Episodes.of makes it so.")
    rows = {column: len(each) for column, each in episodes.by_name.items()}
    if len(set(rows.values())) > 1:
        raise UserError(f"{name} has columns of different lengths: {', '.join(f'{key} {count:,}' for key, count in rows.items())}.")
    ended = episodes.ended
    if not len(ended) or ended[-1] != NOT_ACTED:
        raise UserError(
            f"{name} does not end with the last observation of an episode (ended = {NOT_ACTED}). Episodes.of makes it so."
        )
    tails = np.flatnonzero(ended == NOT_ACTED)
    if ended[0] == NOT_ACTED or (np.diff(tails) == 1).any():
        raise UserError(f"{name} has an episode without a decision. Episodes.of leaves such out.")
    wrong = np.flatnonzero(~np.isin(ended[tails - 1], (Ended.TERMINATED, Ended.TRUNCATED)))
    if len(wrong):
        raise UserError(f"{name}: episode {wrong[0]} has no end behind its last decision (1 terminated, 2 truncated){rest(wrong)}.")
    inside = np.ones(len(ended), bool)
    inside[tails] = inside[tails - 1] = False
    if (early := np.flatnonzero(inside & (ended != Ended.NO))).size:
        raise UserError(f"{name}: {place(episodes, early)} ended, and the episode goes on{rest(early)}.")


def check_episodes(given: Sequence[Episode], name: str) -> list[Episode]:
    """Single episodes with arrays in them, if they have the shapes they should have, and the same ones."""
    given = [_as_arrays(episode, f"{name}: episode {number}") for number, episode in enumerate(given)]
    for number, episode in enumerate(given):
        steps = len(episode.rewards)
        counts = {"observations": (len(episode.observations), steps + 1), "actions": (len(episode.actions), steps)}
        for column, (found, wanted) in counts.items():
            if found != wanted:
                raise UserError(f"{name}: episode {number} has {steps} rewards and {found} {column}; it must have {wanted}.")
        if episode.propensities is not None and episode.propensities.shape != (steps,):
            told = f"{steps} rewards and propensities of shape {episode.propensities.shape}"
            raise UserError(f"{name}: episode {number} has {told}; it must be a number a step.")
        for column in ("observations", "actions", "rewards"):
            ours, first = getattr(episode, column).shape[1:], getattr(given[0], column).shape[1:]
            if ours != first:
                raise UserError(f"{name}: episode {number} has {column} of shape {ours}, and the first one of shape {first}.")
        if episode.pieces != given[0].pieces:
            own, other = (", ".join(map(str, each.pieces)) or "one array" for each in (episode, given[0]))
            raise UserError(f"{name}: episode {number} has observations of {own}, and the first one of {other}.")
        masks = (None if each.action_masks is None else np.shape(each.action_masks)[1:] for each in (episode, given[0]))
        if len(set(masks)) > 1 or (episode.action_masks is not None and len(episode.action_masks) != steps + 1):
            raise UserError(f"{name}: episode {number} has other action_masks than the first one, or not one for each observation; "
                            "give them to every episode, or to none.")  # fmt: skip
        if episode.rewards.ndim != 1:
            raise UserError(f"{name}: episode {number} has rewards of shape {episode.rewards.shape}; it must be a number a step.")
    return given


def _as_arrays(episode: Episode, name: str) -> Episode:
    columns, pieces = {}, episode.pieces
    if isinstance(episode.observations, Mapping):
        seen, pieces = pack_columns(episode.observations, f"{name} has observations")
        episode = dataclasses.replace(episode, observations=seen)
    for column in ("observations", "actions", "rewards"):
        try:
            found = np.asarray(getattr(episode, column))
        except ValueError:  # rows of different lengths
            raise UserError(f"{name} has {column} with rows of different shapes; they must be of one.") from None
        if found.dtype.kind not in "biuf" or not found.ndim or (len(found) and not found.size):
            raise UserError(f"{name} has {column} {shown(getattr(episode, column))}; they must be an array of numbers.")
        columns[column] = found
    if not isinstance(episode.ended, int) or episode.ended not in (Ended.TERMINATED, Ended.TRUNCATED):
        raise UserError(f"{name} has ended={shown(episode.ended)}; it must be 1 (terminated) or 2 (truncated).")
    chosen = None if episode.propensities is None else np.asarray(episode.propensities, np.float32)
    masks = None if episode.action_masks is None else np.asarray(episode.action_masks)
    return Episode(**columns, ended=Ended(episode.ended), propensities=chosen, action_masks=masks, pieces=pieces)


def place(episodes: Episodes, rows: np.ndarray) -> str:
    """Where the first of these rows is, in words."""
    episode = int(np.searchsorted(episodes.starts, rows[0], side="right")) - 1
    return f"episode {episode}, step {int(rows[0] - episodes.starts[episode])}"


def rest(rows: np.ndarray) -> str:
    return f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
