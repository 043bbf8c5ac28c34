"""Whether data can be learned from: asked before training, answered with the episode and the step."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from upslope.errors import Remark, UserError
from upslope.experience.card import Space, spaces_of
from upslope.experience.dataset import Dataset
from upslope.experience.episodes import Episodes
from upslope.experience.shapes import check_columns, place, rest
from upslope.tasks import parse_spec
from upslope.tasks.levels import LEVELS
from upslope.tasks.physics import PARAMS

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


def _check_finite(episodes: Episodes, name: str) -> None:
    for column in ("observation", "action", "reward"):
        values = episodes.numbers(slice(None)) if column == "observation" else getattr(episodes, column)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
        if len(wrong):
            first = values[wrong[0]].reshape(-1)
            value = first[~np.isfinite(first)][0]
            told = f"{name}: {place(episodes, wrong)} has {value} in its {column}{rest(wrong)}"
            raise UserError(f"{told}. Leave such episodes out, or mend the log: nothing can be learned from what is no number.")


def _check_actions(episodes: Episodes, space: Space, name: str) -> None:
    rows, taken = episodes.decisions, episodes.action[episodes.decisions]
    if space.n is not None:
        _check_masks(episodes, space.n, name)
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
        told = f"{name}: {place(episodes, wrong)} has the action {value}, and {allowed}{rest(wrong)}"
        raise UserError(f"{told}. Actions are stored in the environment's own units; scale or clip them so.")


def _check_masks(episodes: Episodes, choices: int, name: str) -> None:
    mask, rows = episodes.action_mask, episodes.decisions
    if mask is None:
        return
    if mask.shape[1] != choices:
        raise UserError(f"{name} has action masks of {mask.shape[1]} entries, and there are {choices} choices.")
    taken = episodes.action[rows]
    inside = (taken >= 0) & (taken < choices)  # others are named by whoever looks at actions
    wrong = rows[inside][~mask[rows[inside], taken[inside]]]
    if len(wrong):
        told = f"{name}: {place(episodes, wrong)} has the action {episodes.action[wrong[0]]}, which its mask forbids{rest(wrong)}"
        raise UserError(f"{told}. Mend the masks, or leave the column out.")


def _ends(bound: np.ndarray) -> str:
    same = len(bound) == 1 or (bound == bound[0]).all()
    return f"{bound[0]:g}" if same else np.array2string(bound, precision=4, threshold=8)


def world(env: str) -> str:
    """A task's text less what changes neither its physics nor what it shows: time limits and the like."""
    name, options = parse_spec(env)
    physics = sorted(f"{option}={value}" for option, value in options.items() if option.startswith((PARAMS, LEVELS)))
    return ":".join([name, *([",".join(physics)] if physics else [])])


def _check_task(dataset: Dataset, task: GymTask, name: str) -> None:
    card, episodes = dataset.card, dataset.episodes
    observation, action = spaces_of(task)
    seen, named = episodes.observation.shape[1:], f" (made in {card.env})" if card.env else ""
    if observation.pieces != episodes.pieces:
        raise UserError(f"{name}{named} has observations of {card.observation}, and {task.name} has {observation}: it is of "
                        "another environment. Give the task it was recorded in, or other data.")  # fmt: skip
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
