"""Estimates with honest error bars: pass@k, intervals, and means that one lucky seed cannot move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upslope.errors import UserError

Statistic = Callable[[NDArray[np.float64]], float]


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float


def pass_at_k_each(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    r"""The chance that one of ``k`` samples is right, for each problem, without bias (Chen et al. 2021).

    .. math::  1 - \binom{n - c}{k} / \binom{n}{k}

    Args:
        n: samples drawn, ``[P]`` or one number for all problems.
        c: how many of them were right, ``[P]``.
        k: at most the smallest ``n``.

    Returns:
        ``[P]``
    """
    drawn, right = np.broadcast_arrays(np.asarray(n), np.asarray(c))
    if k < 1 or (drawn.size and drawn.min() < k):
        raise UserError(f"pass@{k} needs k from 1 to the number of samples of each problem; the fewest are {drawn.min(initial=k)}.")
    if ((right < 0) | (right > drawn)).any():
        raise ValueError("there cannot be more right samples than samples, nor fewer than none")
    # Exact integers: factorials of a thousand samples do not fit a float. Few pairs differ, so each is worked out once.
    pairs = list(zip(drawn.ravel().tolist(), right.ravel().tolist(), strict=True))
    chance = {pair: 1.0 - math.comb(pair[0] - pair[1], k) / math.comb(pair[0], k) for pair in set(pairs)}
    return np.array([chance[pair] for pair in pairs], dtype=np.float64)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> float:
    """Mean of `pass_at_k_each` over problems."""
    each = pass_at_k_each(n, c, k)
    if not each.size:
        raise ValueError("pass@k of no problems")
    return float(each.mean())


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """An interval for a success rate that is sensible at 0, at ``n`` and for few trials. Without trials it is all of 0 to 1."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    if n == 0:
        return Interval(0.0, 1.0)
    z = _normal_quantile(level)
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    # At the ends the formula is exact; rounding is not.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return Interval(low, 1.0 if successes == n else min(1.0, centre + half))


def share_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    r"""An interval for the mean of shares over problems, such as pass@k: it has width wherever they lie, at 0 and at 1 too.

    Where every problem has 0 or 1 it is `wilson_interval`. Otherwise the problems are joined by :math:`z^2` more, half of them 0
    and half 1, as Agresti and Coull (1998) do for rates, and the normal interval of the mean of all of them is taken:

    .. math::  \tilde m \pm z \sqrt{\tilde v / (P + z^2)}

    A bootstrap over problems has no width where all are alike, and next to none where all but a few are.

    Args:
        values: ``[P]``, each from 0 to 1.
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    if ((given < 0) | (given > 1)).any():
        raise ValueError("shares are from 0 to 1")
    if np.isin(given, (0.0, 1.0)).all():
        return wilson_interval(int(given.sum()), len(given), level)
    z = _normal_quantile(level)
    more, count = z * z, len(given) + z * z
    mean = (float(given.sum()) + more / 2) / count
    variance = (float(((given - mean) ** 2).sum()) + more / 2 * (mean**2 + (1 - mean) ** 2)) / count
    half = z * math.sqrt(variance / count)
    return Interval(max(0.0, min(mean - half, float(given.mean()))), min(1.0, max(mean + half, float(given.mean()))))


def difference_interval(before: float, first: Interval, after: float, second: Interval) -> Interval:
    """Of ``after - before``, from an interval of each (Newcombe 1998, method 10, for any two estimates): it has width if they have.

    That both are of the same problems is not used, which makes it too wide rather than too narrow.
    """
    change = after - before
    low = change - math.hypot(after - second.low, first.high - before)
    return Interval(low, change + math.hypot(second.high - after, before - first.low))


def student_quantile(degrees: int, level: float = 0.95) -> float:
    r"""Half the width, in standard errors, of an interval of a mean with so many degrees of freedom.

    With :math:`t = \sqrt{\nu} \tan\theta` Student's density becomes :math:`\cos^{\nu - 1}\theta`, which is easily summed.
    """
    angles = np.linspace(0.0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(float(np.interp(level, area / area[-1], angles)))


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of all values, of any shape: a quarter of them, rounded down, is cut at each end."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    if not ordered.size:
        raise ValueError("interquartile mean of nothing")
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic = np.mean, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of a statistic over problems.

    Args:
        values: ``[P]`` or ``[P, ...]``; whole problems are drawn, with what belongs to each.
        statistic: takes an array like ``values`` and gives a number.
        level: share of the draws inside of the interval.
        draws: more makes the ends steadier.
        seed: the same seed gives the same interval.
    """
    given = np.asarray(values, dtype=np.float64)
    if not len(given):
        raise ValueError("bootstrap of nothing")
    rng = bootstrap_generator(seed)
    return percentile_interval([float(statistic(given[rng.integers(0, len(given), len(given))])) for _ in range(draws)], level)


def stratified_bootstrap_interval(
    strata: Sequence[ArrayLike],
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Bootstrap over seeds, each task drawn on its own: every draw has as many runs of every task as there were.

    Args:
        strata: for each task the scores of its seeds, ``[S]`` each; the numbers of seeds may differ.
        statistic: takes all scores of a draw in one array ``[sum of S]``.
    """
    groups = [np.asarray(stratum, dtype=np.float64).ravel() for stratum in strata]
    if not groups or any(not len(group) for group in groups):
        raise ValueError("every stratum needs a value")
    rng = bootstrap_generator(seed)
    found = []
    for _ in range(draws):
        drawn = [group[rng.integers(0, len(group), len(group))] for group in groups]
        found.append(float(statistic(np.concatenate(drawn))))
    return percentile_interval(found, level)


def iqm_band(curves: ArrayLike, level: float = 0.95, draws: int = 400) -> tuple[NDArray[np.float64], ...]:
    """Interquartile mean over seeds of curves ``[S, P]`` with its bootstrap interval: middle, low and high, each ``[P]``."""
    from upslope.runtime.seeding import numpy_generator  # late: it comes with torch

    given = np.asarray(curves, dtype=np.float64)
    seeds = len(given)
    picks = numpy_generator(0, "curves").integers(0, seeds, (draws, seeds))
    cut = seeds // 4

    def middle(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sort(drawn, axis=-2)[..., cut : seeds - cut, :].mean(-2)

    low, high = np.quantile(middle(given[picks]), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return middle(given), low, high


def performance_profile(scores: ArrayLike, levels: ArrayLike) -> NDArray[np.float64]:
    """The share of scores above each level, ``[L]`` (Agarwal et al. 2021)."""
    given = np.asarray(scores, dtype=np.float64).ravel()
    return (given[None, :] > np.asarray(levels, dtype=np.float64)[:, None]).mean(1)


def percentile_interval(found: list[float], level: float) -> Interval:
    """The middle share ``level`` of what bootstrap draws gave."""
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _normal_quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)


def bootstrap_generator(seed: int) -> np.random.Generator:
    """What all bootstraps draw with."""
    from upslope.runtime.seeding import numpy_generator  # late: it comes with torch

    return numpy_generator(seed, "bootstrap")
