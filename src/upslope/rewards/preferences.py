"""Who wins: the chance that one answer to a problem is preferred to another, as a matrix over the answers of a group.

``P[i, j]`` is the chance that answer ``i`` beats answer ``j``. Whoever decides, ``P + P.T`` is 1 everywhere and the diagonal 1/2:
what a source says of both orders is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.fields import shown
from upslope.runtime.seeding import mix, stable_hash
from upslope.tasks.text import Problem, TextTask

LARGEST = 1 << 63
"""What `mix` stays below."""


@dataclass(frozen=True)
class Contest:
    """Answers to one problem that are compared with each other."""

    problem: Problem
    texts: tuple[str, ...]

    def hash_of(self, place: int) -> int:
        """Of the text there."""
        return stable_hash(self.texts[place])

    def pair_key(self, one: int, other: int) -> tuple[int, int, int]:
        """What names two of its answers in either order: hashes of the problem and of both texts, the smaller first."""
        first, second = sorted((self.hash_of(one), self.hash_of(other)))
        return self.problem.id, first, second


def antisymmetric(matrix: Any, size: int, who: str) -> np.ndarray:
    """What a source said as chances ``[K, K]``: the mean of what it said of each order, 1/2 on the diagonal.

    Args:
        who: said it, for the message.

    Raises:
        TaskError: if these are no chances of so many answers.
    """
    try:
        said = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        said = np.empty(0)
    if said.shape != (size, size):
        raise TaskError(f"{who} gave {shown(matrix)} for {size} answers; it must give {size} rows of {size} chances.")
    if not bool(((said >= 0) & (said <= 1)).all()):
        wrong = said[~((said >= 0) & (said <= 1))][0]
        raise TaskError(f"{who} gave the chance {wrong:g} that an answer is preferred; it must be from 0 to 1.")
    upper = np.triu((said + (1 - said.T)) / 2, 1)
    return upper + np.tril(1 - upper.T, -1) + np.eye(size) / 2


def bradley_terry(scores: Sequence[float], scale: float = 1.0) -> np.ndarray:
    """Chances by the difference of scores, ``P[i, j] = sigmoid((s_i - s_j) / scale)``: what Bradley and Terry assume."""
    score = np.asarray(scores, dtype=np.float64)
    if not bool(np.isfinite(score).all()):
        worst = score[~np.isfinite(score)][0]
        raise TaskError(f"an answer earned {worst:g}, which cannot be compared with others. The reward must be a finite number.")
    gap = (score[:, None] - score[None, :]) / scale
    return antisymmetric(1 / (1 + np.exp(-np.clip(gap, -700, 700))), len(score), "the reward")


def compared_by_task(task: TextTask, contest: Contest) -> np.ndarray:
    """The chances that a task gives the answers of a contest; equal texts are even, and asked about once."""
    distinct = list(dict.fromkeys(contest.texts))
    said = antisymmetric(task.compare(contest.problem, distinct), len(distinct), f"'compare' of {task.name}")
    return expanded(said, distinct, contest.texts)


def expanded(chances: np.ndarray, distinct: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """The chances between all texts, given those between the distinct ones."""
    place = {text: number for number, text in enumerate(distinct)}
    which = [place[text] for text in texts]
    return chances[np.ix_(which, which)]


def flipped(chances: np.ndarray, contest: Contest, noise: float, seed: int) -> np.ndarray:
    """The chances with the verdict on a share of the pairs turned round.

    Whether a pair's is depends on the seed, the problem and the two texts alone: asked again, the answer is the same.
    """
    if noise <= 0:
        return chances
    found = chances.copy()
    for one in range(len(chances)):
        for other in range(one + 1, len(chances)):
            if mix(seed, "flipped", *contest.pair_key(one, other)) < noise * LARGEST:
                found[one, other], found[other, one] = chances[other, one], chances[one, other]
    return found
