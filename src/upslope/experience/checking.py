"""Whether data can be learned from: asked before training, answered with the episode and the step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from upslope.errors import Remark, UserError
from upslope.experience.card import Space, spaces_of
from upslope.experience.dataset import Dataset
from upslope.experience.episodes import NOT_ACTED, Episode, Episodes
from upslope.fields import shown
from upslope.tasks.physics import PARAMS
from upslope.types import Ended

if TYPE_CHECKING:
    from upslope.tasks.gym import GymTask

ROUNDING = 1e-5
"""Share of an action's range that it may lie outside: logs in other precisions end a little beyond the bounds."""


def check_dataset(dataset: Dataset, task: GymTask | None = None) -> None:
    """Refuses data that cannot be learned from, or not in this task; remarks on what is merely unusual.

    Args:
        task: Where a policy will act or be judged.

    Raises:
        UserError: with the first place, as in "episode 3, step 17", both counted from 0, and how many more there are.
    """
    name = f"dataset {dataset.card.name!r}"
    check_columns(dataset.episodes, name)
    if task is not None:
        _check_task(dataset, task, name)
    _check_finite(dataset.episodes, name)
    _check_actions(dataset.episodes, dataset.card.action if task is None else spaces_of(task)[1], name)
    if len(dataset.episodes) == 1:
        # Not refused: one demonstration is enough to imitate.
        told = f"{name} has one episode only: it shows one way of acting, and nothing says how much returns vary"
        warnings.warn(
            Remark(f"{told}. If it is a log of several, mark their ends in 'terminations' or 'truncations'."), stacklevel=2
        )


def check_columns(episodes: Episodes, name: str) -> None:
    """Whether columns are whole episodes: as many rows each, every episode ended behind its last decision and only there."""
    rows = {column: len(getattr(episodes, column)) for column in ("observation", "action", "reward", "ended")}
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
        raise UserError(
            f"{name}: episode {wrong[0]} has no end behind its last decision (1 terminated, 2 truncated){_rest(wrong)}."
        )
    inside = np.ones(len(ended), bool)
    inside[tails] = inside[tails - 1] = False
    if (early := np.flatnonzero(inside & (ended != Ended.NO))).size:
        raise UserError(f"{name}: {place(episodes, early)} ended, and the episode goes on{_rest(early)}.")


def check_episodes(given: Sequence[Episode], name: str) -> list[Episode]:
    """Single episodes with arrays in them, if they have the shapes they should have, and the same ones."""
    for number, episode in enumerate(given):
        if episode.ended not in (Ended.TERMINATED, Ended.TRUNCATED):
            raise UserError(
                f"{name}: episode {number} has ended={shown(episode.ended)}; it must be 1 (terminated) or 2 (truncated)."
            )
        steps = len(episode.rewards)
        counts = {"observations": (len(episode.observations), steps + 1), "actions": (len(episode.actions), steps)}
        for column, (found, wanted) in counts.items():
            if found != wanted:
                raise UserError(f"{name}: episode {number} has {steps} rewards and {found} {column}; it must have {wanted}.")
        for column in ("observations", "actions", "rewards"):
            ours, first = np.shape(getattr(episode, column))[1:], np.shape(getattr(given[0], column))[1:]
            if ours != first:
                raise UserError(f"{name}: episode {number} has {column} of shape {ours}, and the first one of shape {first}.")
        if np.ndim(episode.rewards) != 1:
            raise UserError(
                f"{name}: episode {number} has rewards of shape {np.shape(episode.rewards)}; one number a step is wanted."
            )
    arrays = [(np.asarray(each.observations), np.asarray(each.actions), np.asarray(each.rewards)) for each in given]
    return [Episode(*columns, Ended(each.ended)) for columns, each in zip(arrays, given, strict=True)]


def place(episodes: Episodes, rows: np.ndarray) -> str:
    """Where the first of these rows is, in words."""
    episode = int(np.searchsorted(episodes.starts, rows[0], side="right")) - 1
    return f"episode {episode}, step {int(rows[0] - episodes.starts[episode])}"


def _rest(rows: np.ndarray) -> str:
    return f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""


def _check_finite(episodes: Episodes, name: str) -> None:
    for column in ("observation", "action", "reward"):
        values = getattr(episodes, column)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
        if len(wrong):
            first = values[wrong[0]].reshape(-1)
            value = first[~np.isfinite(first)][0]
            told = f"{name}: {place(episodes, wrong)} has {value} in its {column}{_rest(wrong)}"
            raise UserError(f"{told}. Leave such episodes out, or mend the log: nothing can be learned from what is no number.")


def _check_actions(episodes: Episodes, space: Space, name: str) -> None:
    rows, taken = episodes.decisions, episodes.action[episodes.decisions]
    if space.n is not None:
        outside, allowed = (taken < 0) | (taken >= space.n), f"choices are 0 to {space.n - 1}"
    else:
        low, high = space.bounds
        with np.errstate(invalid="ignore"):
            slack = np.nan_to_num(ROUNDING * (high - low), posinf=0.0)
        outside = ((taken < low - slack) | (taken > high + slack)).any(1)
        allowed = f"the space ends at {_ends(low)} and {_ends(high)}"
    wrong = rows[np.flatnonzero(outside)]
    if len(wrong):
        value = np.array2string(episodes.action[wrong[0]], precision=4, threshold=8)
        told = f"{name}: {place(episodes, wrong)} has the action {value}, and {allowed}{_rest(wrong)}"
        raise UserError(f"{told}. Actions are stored in the environment's own units; scale or clip them so.")


def _ends(bound: np.ndarray) -> str:
    same = len(bound) == 1 or (bound == bound[0]).all()
    return f"{bound[0]:g}" if same else np.array2string(bound, precision=4, threshold=8)


def world(env: str) -> str:
    """A task's text less what changes neither its physics nor what it shows: time limits and the like."""
    name, _, options = env.rpartition(":")
    if "=" not in options:
        return env
    physics = sorted(option for option in options.split(",") if option.startswith(PARAMS))
    return ":".join([name, *([",".join(physics)] if physics else [])])


def _check_task(dataset: Dataset, task: GymTask, name: str) -> None:
    card, episodes = dataset.card, dataset.episodes
    observation, action = spaces_of(task)
    seen, named = episodes.observation.shape[1:], f" (made in {card.env})" if card.env else ""
    if seen != observation.shape:
        raise UserError(f"{name}{named} has observations of shape {seen}, and {task.name} has {observation.shape}: "
                        "it is of another environment. Give the task it was recorded in, or other data.")  # fmt: skip
    kinds = ("choices", "vectors")
    if episodes.discrete != (action.n is not None):
        ours, theirs = kinds[not episodes.discrete], kinds[action.n is None]
        raise UserError(f"{name}{named} has {ours} as actions, and {task.name} takes {theirs}: it is of another environment.")
    if not episodes.discrete and episodes.action.shape[1:] != action.shape:
        raise UserError(f"{name}{named} has actions of {episodes.action.shape[1]} numbers, and {task.name} takes {action.size}: "
                        "it is of another environment.")  # fmt: skip
    if card.env and world(card.env) != world(task.name):
        told = f"{name} was made in {card.env}, and the task is {task.name}; their shapes agree"
        warnings.warn(
            Remark(f"{told}. If they are not the same world, what is learned from one may fail in the other."), stacklevel=2
        )
