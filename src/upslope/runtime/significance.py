"""Which of two methods is better, from few runs: the probability of improvement, an exact test of it, and what both need.

The figure is that of Agarwal et al. (2021), so that it equals rliable's: a run of ours against every run of theirs on the same
task, ties half, averaged over tasks. Its bootstrap interval has no width where every run of ours is better, however few there are;
the interval here is therefore a score interval, and whether there is a winner is decided by a permutation test, which is exact at
any number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upslope.runtime.statistics import Interval, bootstrap_generator, percentile_interval

Floats = NDArray[np.float64]
Strata = Sequence[ArrayLike]
"""For each task the scores of its runs, ``[S]`` each."""

MOST_SEEDS = 100
"""More than this many further seeds are not counted out."""


def probability_of_improvement(ours: Strata, theirs: Strata) -> float:
    """The chance that a run of ours is better than one of theirs on the same task, ties half; the mean over tasks."""
    return float(np.mean([_chance(x, y) for x, y in _tasks(ours, theirs)]))


def bootstrap_improvement_interval(ours: Strata, theirs: Strata, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """rliable's interval of it: runs of either side drawn anew, each task on its own. All runs better: no width."""
    tasks, rng = _tasks(ours, theirs), bootstrap_generator(seed)
    found = np.zeros(draws)
    for x, y in tasks:
        some, others = (side[rng.integers(0, len(side), (draws, len(side)))] for side in (x, y))
        difference = some[:, :, None] - others[:, None, :]
        found += ((difference > 0) + 0.5 * (difference == 0)).mean((1, 2)) / len(tasks)
    return percentile_interval(found.tolist(), level)


def improvement_interval(chance: float, sizes: Sequence[tuple[int, int]], level: float = 0.95) -> Interval:
    r"""Score interval of a probability of improvement (method 5 of Newcombe 2006), sensible at 0, at 1 and for few runs.

    All :math:`\theta` with :math:`|\hat\theta - \theta| \le z \sqrt{V(\theta)}`, where :math:`V` is the variance the estimate
    would have at :math:`\theta`. With several tasks their variances at a common :math:`\theta` are averaged as the estimate is,
    which is too wide rather than too narrow where tasks differ: the variance is concave.

    Args:
        chance: the estimate.
        sizes: for each task, the runs of either side.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)

    def inside(theta: float) -> bool:
        spread = sum(_variance(theta, n, m) for n, m in sizes) / len(sizes) ** 2
        return abs(chance - theta) <= z * math.sqrt(spread)

    return Interval(_edge(inside, chance, 0.0), _edge(inside, chance, 1.0))


def exchange_test(ours: Strata, theirs: Strata, paired: bool = False) -> float:
    """Two-sided p of "the label does not matter", for the probability of improvement; exact, ties included.

    Args:
        paired: run ``i`` of ours and run ``i`` of theirs share a seed, and labels are exchanged only between the two. Otherwise
            they are exchanged among all runs of a task (with one task: the Mann-Whitney test).
    """
    tasks = _tasks(ours, theirs)
    if paired and any(len(x) != len(y) for x, y in tasks):
        raise ValueError("paired runs come in pairs")
    common = math.lcm(*(len(x) * len(y) for x, y in tasks))
    chances, seen = np.ones(1), 0  # of each distance from the expected rank sum, in common units
    for x, y in tasks:
        ranks = _doubled_ranks(np.concatenate([x, y]))
        if paired:
            moves = ranks[: len(x)] - ranks[len(x) :]
            here, off = _signed_sums(moves), int(moves.sum())
        else:
            here, off = _rank_sums(tuple(sorted(ranks.tolist())), len(x)), int(ranks[: len(x)].sum()) - len(x) * (len(ranks) + 1)
        unit = common // (len(x) * len(y))
        chances = np.convolve(chances, _spread_out(here, unit))
        seen += off * unit
    distance = np.abs(np.arange(len(chances)) - len(chances) // 2)
    return min(1.0, float(chances[distance >= abs(seen)].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """p adjusted for their number (Holm 1979): those at most alpha are rejected with an error of at most alpha in the family."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = highest
    return adjusted


def least_p(seeds: int, tasks: int = 1, paired: bool = False) -> float:
    """The smallest p that `exchange_test` can give with so many runs of either side on each task."""
    return 2.0 ** (1 - seeds * tasks) if paired else 2.0 / math.comb(2 * seeds, seeds) ** tasks


def seeds_needed(chance: float, alpha: float = 0.05, power: float = 0.8, tasks: int = 1) -> int | None:
    r"""Runs of either side per task after which the test would find a difference of this size (Noether 1987).

    .. math::  n = \frac{(z_{1-\alpha/2} + z_{power})^2}{6 \, T \, (P - 1/2)^2}

    but no fewer than can reach ``alpha`` at all. ``None`` if more than `MOST_SEEDS`.

    Args:
        chance: the probability of improvement, taken for the true one.
    """
    normal = NormalDist()
    wanted = (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) ** 2
    off = abs(chance - 0.5)
    needed = math.ceil(wanted / (6 * tasks * off**2)) if off > 1e-3 else MOST_SEEDS + 1
    while needed <= MOST_SEEDS and least_p(needed, tasks) > alpha:
        needed += 1
    return needed if needed <= MOST_SEEDS else None


def paired_seeds_needed(ours: Strata, theirs: Strata, alpha: float = 0.05, power: float = 0.8) -> int | None:
    r"""As `seeds_needed` for the paired test, from the mean and the spread of the rank differences of pairs that are there.

    .. math::  n = \frac{1}{T} \left( (z_{1-\alpha/2} + z_{power}) \, \frac{s_D}{\bar D} \right)^2
    """
    moves = [_doubled_ranks(np.concatenate([x, y])) for x, y in _tasks(ours, theirs)]
    each = np.concatenate([(ranks[: len(ranks) // 2] - ranks[len(ranks) // 2 :]) / len(ranks) for ranks in moves])
    mean, spread = abs(float(each.mean())), float(each.std(ddof=1)) if len(each) > 1 else math.inf
    normal = NormalDist()
    wanted = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    if mean == 0 or not math.isfinite(spread):
        return None
    needed = max(2, math.ceil(min((wanted * spread / mean) ** 2 / len(moves), MOST_SEEDS + 1)))
    while needed <= MOST_SEEDS and least_p(needed, len(moves), paired=True) > alpha:
        needed += 1
    return needed if needed <= MOST_SEEDS else None


# -- inside ----------------------------------------------------------------------------------------------------------------


def _tasks(ours: Strata, theirs: Strata) -> list[tuple[Floats, Floats]]:
    pairs = [
        (np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel())
        for x, y in zip(ours, theirs, strict=True)
    ]
    if not pairs or any(not len(x) or not len(y) for x, y in pairs):
        raise ValueError("every task needs a run of either side")
    return pairs


def _chance(x: Floats, y: Floats) -> float:
    difference = x[:, None] - y[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def _variance(theta: float, n: int, m: int) -> float:
    """Of the estimate where theta is true, under exponential scores (Hanley and McNeil), both sizes as their mean."""
    more = (n + m) / 2 - 1
    return theta * (1 - theta) * (1 + more * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n * m)


def _edge(inside: Callable[[float], bool], within: float, limit: float) -> float:
    """Where an interval ends between a point within it and a limit."""
    if inside(limit):
        return limit
    for _ in range(60):
        half = (within + limit) / 2
        within, limit = (half, limit) if inside(half) else (within, half)
    return within


def _doubled_ranks(values: Floats) -> NDArray[np.int64]:
    """Twice the rank of each value, whole even for ties, which share their mean rank."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (2 * ends - counts + 1)[where]


@lru_cache(maxsize=64)  # without ties, all samples of a size have the same ranks
def _rank_sums(ranks: tuple[int, ...], chosen: int) -> Floats:
    """How likely each distance of the sum of so many ranks from its mean is, from minus to plus the largest."""
    total = sum(ranks)
    table = np.zeros((chosen + 1, total + 1))
    table[0, 0] = 1.0
    for rank in ranks:
        table[1:, rank:] += table[:-1, : total + 1 - rank].copy()
    sums = table[chosen] / math.comb(len(ranks), chosen)
    centre = chosen * (len(ranks) + 1)
    reach = max(centre, total - centre)
    found = np.zeros(2 * reach + 1)
    found[reach - centre : reach - centre + total + 1] = sums
    return found


def _signed_sums(moves: NDArray[np.int64]) -> Floats:
    """How likely each sum of the moves with random signs is, from minus to plus the largest."""
    chances = np.ones(1)
    for move in np.abs(moves).tolist():
        if move:
            step = np.zeros(2 * move + 1)
            step[0] = step[-1] = 0.5
            chances = np.convolve(chances, step)
    return chances


def _spread_out(chances: Floats, unit: int) -> Floats:
    """The same chances at ``unit`` times the distances."""
    found = np.zeros((len(chances) - 1) * unit + 1)
    found[::unit] = chances
    return found
