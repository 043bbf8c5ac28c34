"""What neighbouring states tell of demonstrations: do actions agree there, is what follows certain, is there company.

The properties are those of "Data Quality in Imitation Learning" (2306.02437); the estimators are ours: the nearest neighbours of
some states, drawn by counter, among all of them or, of large datasets, among some. Numbers are measured in their own spread
(standard deviations over the dataset), so that a metre and a radian count alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from upslope.experience.card import Space
from upslope.experience.episodes import Episodes
from upslope.runtime.seeding import numpy_generator

RADIUS = 0.1
"""How near a neighbour is: the root mean square over entries of their difference, in standard deviations."""
NEAREST = 10
"""Of the neighbours within the radius, so many are compared."""
ASKED = 2_000
"""States that are looked at."""
AMONG = 20_000
"""Decisions among which neighbours are looked for; of more, so many are drawn."""
MOST_NUMBERS = 20_000_000
"""In their observations together: of images, fewer decisions are drawn."""


@dataclass(frozen=True)
class Neighbourhoods:
    """Means over states of the dataset; NaN where no state has a neighbour."""

    action_variance: float
    """Of actions in neighbouring states, between 0 (they agree) and what random ones have. Vectors are scaled to [-1, 1] where
    their bounds are known, and the variance is the mean over entries; of choices it is the chance that two of them differ."""
    transition_noise: float
    """The share of the variance of ``s' - s`` that neighbouring states and actions do not explain: 0 is a certain world."""
    state_similarity: float
    """Decisions of the dataset, besides its own, within the radius of a state."""
    states: int
    """That were looked at."""
    among: int
    """Decisions among which neighbours were looked for."""


def neighbourhoods(episodes: Episodes, actions: Space, seed: int = 0) -> Neighbourhoods:
    """Looks at the neighbours of some states.

    Args:
        actions: Their bounds.
        seed: Of which states are looked at, and of which decisions, where there are more than are.
    """
    rows = episodes.decisions
    # Shuffled even where all are taken: of many at the same distance the first are compared.
    size = int(np.prod(episodes.observation.shape[1:]))
    rows = rows[numpy_generator(seed, "neighbours").permutation(len(rows))[: min(AMONG, max(MOST_NUMBERS // size, 100))]]
    seen, following = (_in_numbers(episodes, which) for which in (rows, rows + 1))
    change = following - seen
    taken = one_hot(episodes.action[rows]) if episodes.discrete else scaled(episodes.action[rows], actions)
    asked = min(ASKED, len(rows))
    states = _standard(seen)
    near, similar = _nearest(states, asked)
    apart = 2 * RADIUS * math.sqrt(seen.shape[1] + taken.shape[1])  # so that different choices are never neighbours
    near_pairs, _ = _nearest(np.concatenate([states, taken * apart if episodes.discrete else _standard(taken)], axis=1), asked)
    agree = _mean_variance(taken, near)
    spread = change.astype(np.float64).var(0, ddof=1) if len(change) > 1 else np.zeros(change.shape[1])
    moving = spread > 0
    noise = _mean_variance(change[:, moving] / np.sqrt(spread[moving]), near_pairs)
    return Neighbourhoods(
        action_variance=float(agree.sum() if episodes.discrete else agree.mean()),
        transition_noise=float(noise.mean()) if moving.any() else 0.0,
        state_similarity=float(similar.mean()) * (len(episodes.decisions) - 1) / max(len(rows) - 1, 1),
        states=asked,
        among=len(rows),
    )


def _in_numbers(episodes: Episodes, rows: np.ndarray) -> np.ndarray:
    """Observations ``[N, D]`` float32, a pixel from 0 to 255 each."""
    return np.concatenate([episodes.numbers(rows), episodes.pixels(rows).astype(np.float32)], axis=1)


def one_hot(choices: np.ndarray) -> np.ndarray:
    """Choices ``[N]`` as rows of zeros and a one; a column for each that occurs."""
    found, which = np.unique(choices, return_inverse=True)
    return np.eye(len(found), dtype=np.float32)[which]


def scaled(actions: np.ndarray, space: Space) -> np.ndarray:
    """Actions with their bounds at -1 and 1, where those are known."""
    low, high = space.bounds
    known = np.isfinite(low) & np.isfinite(high) & (high > low)
    low, high = np.where(known, low, -1.0), np.where(known, high, 1.0)
    return ((actions - low) / (high - low) * 2 - 1).astype(np.float32)


def _standard(numbers: np.ndarray) -> np.ndarray:
    """Each entry in its own spread, about its mean; one that never changes says nothing."""
    wide = numbers.astype(np.float64)
    spread = wide.std(0)
    centred = (wide - wide.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.where(spread > 0, centred, 0.0).astype(np.float32)


def _nearest(points: np.ndarray, asked: int) -> tuple[list[np.ndarray], np.ndarray]:
    """For each of the first points the numbers of its nearest ones within the radius, itself among them; and how many others."""
    within = RADIUS**2 * points.shape[1]
    lengths = np.einsum("nd,nd->n", points, points)
    found: list[np.ndarray] = []
    similar = np.zeros(asked)
    for begin in range(0, asked, 256):
        some = points[begin : min(begin + 256, asked)]
        distance = lengths[None] - 2 * some @ points.T + lengths[begin : begin + len(some), None]
        for row, apart in enumerate(distance):
            apart[begin + row] = -np.inf  # itself comes first, whatever rounding says
            near = np.flatnonzero(apart <= within)
            similar[begin + row] = len(near) - 1
            found.append(near[np.argsort(apart[near], kind="stable")[:NEAREST]])
    return found, similar


def _mean_variance(values: np.ndarray, near: list[np.ndarray]) -> np.ndarray:
    """Mean over points with at least one neighbour of the unbiased variance of each entry among them."""
    wide = values.astype(np.float64)
    # About the first of them, so that what is equal has no variance at all.
    found = [(wide[each] - wide[each[0]]).var(0, ddof=1) for each in near if len(each) > 1]
    return np.mean(found, axis=0) if found else np.full(values.shape[1], np.nan)
