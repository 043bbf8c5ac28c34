"""Probability of improvement, its test and its intervals: against rliable, scipy, brute force and simulated methods."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy import stats

from upslope.runtime.significance import (
    bootstrap_improvement_interval,
    exchange_test,
    holm,
    improvement_interval,
    least_p,
    paired_seeds_needed,
    probability_of_improvement,
    seeds_needed,
)
from upslope.runtime.statistics import (
    interquartile_mean,
    iqm_band,
    performance_profile,
    stratified_bootstrap_interval,
)

rliable = pytest.importorskip("rliable")
from rliable import library, metrics  # noqa: E402


def scores(seed: int, runs: int, tasks: int = 1, shift: float = 0.0, digits: int = 3) -> np.ndarray:
    """``[runs, tasks]``; few digits make ties."""
    return np.round(np.random.default_rng(seed).normal(shift, 1, (runs, tasks)), digits)


def strata(matrix: np.ndarray) -> list[np.ndarray]:
    return list(matrix.T)


# -- the same numbers as rliable -------------------------------------------------------------------------------------------


@pytest.mark.oracle("rliable")
@pytest.mark.parametrize(("runs", "tasks", "digits"), [(5, 1, 3), (5, 3, 1), (10, 2, 0), (3, 1, 0)])
def test_the_figures_are_rliables(runs: int, tasks: int, digits: int) -> None:
    for seed in range(20):
        x, y = scores(seed, runs, tasks, 0.5, digits), scores(seed + 100, runs, tasks, 0.0, digits)
        assert probability_of_improvement(strata(x), strata(y)) == pytest.approx(
            metrics.probability_of_improvement(x, y), abs=1e-12
        )
        assert interquartile_mean(x) == pytest.approx(metrics.aggregate_iqm(x), abs=1e-12)
        levels = np.linspace(-2, 2, 9)
        theirs, _ = library.create_performance_profile({"x": x}, levels, reps=2)
        np.testing.assert_allclose(performance_profile(x, levels), theirs["x"])


@pytest.mark.oracle("rliable")
@pytest.mark.slow
def test_bootstrap_intervals_are_rliables_but_for_the_draws() -> None:
    x, y = scores(1, 10, 2, 0.8), scores(2, 10, 2)
    state = np.random.RandomState(0)
    _, theirs = library.get_interval_estimates(
        {"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=4000, random_state=state
    )
    ours = stratified_bootstrap_interval(strata(x), draws=4000)
    np.testing.assert_allclose(ours, theirs["x"].ravel(), atol=0.03)
    _, theirs = library.get_interval_estimates(
        {"x,y": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=1000, random_state=state
    )
    np.testing.assert_allclose(bootstrap_improvement_interval(strata(x), strata(y), draws=4000), theirs["x,y"].ravel(), atol=0.03)


def test_a_band_is_the_interquartile_mean_at_every_point() -> None:
    curves = scores(3, 9, 6)
    middle, low, high = iqm_band(curves, draws=2000)
    np.testing.assert_allclose(middle, [interquartile_mean(column) for column in curves.T])
    apart = [stratified_bootstrap_interval([column]) for column in curves.T]
    np.testing.assert_allclose(np.stack([low, high], 1), apart, atol=0.15)


# -- the test --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 5), (5, 8), (9, 6)])
def test_one_task_unpaired_is_the_exact_mann_whitney_test(n: int, m: int) -> None:
    for seed in range(20):
        x, y = scores(seed, n, shift=0.7, digits=6)[:, 0], scores(seed + 50, m, digits=6)[:, 0]
        theirs = stats.mannwhitneyu(x, y, method="exact").pvalue
        assert exchange_test([x], [y]) == pytest.approx(theirs, abs=1e-12)


def brute_unpaired(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    seen = abs(probability_of_improvement(xs, ys) - 0.5)
    splits = []
    for x, y in zip(xs, ys, strict=True):
        pooled = np.concatenate([x, y])
        splits.append(
            [(pooled[list(c)], np.delete(pooled, list(c))) for c in combinations(range(len(pooled)), len(x))],
        )
    found = [abs(probability_of_improvement([a for a, _ in each], [b for _, b in each]) - 0.5) for each in product(*splits)]
    return float(np.mean(np.array(found) >= seen - 1e-9))


def brute_paired(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    seen = abs(probability_of_improvement(xs, ys) - 0.5)
    found = []
    for swaps in product([False, True], repeat=sum(map(len, xs))):
        left = list(swaps)
        a, b = [], []
        for x, y in zip(xs, ys, strict=True):
            swap, left = np.array(left[: len(x)]), left[len(x) :]
            a.append(np.where(swap, y, x))
            b.append(np.where(swap, x, y))
        found.append(abs(probability_of_improvement(a, b) - 0.5))
    return float(np.mean(np.array(found) >= seen - 1e-9))


@pytest.mark.parametrize("digits", [0, 1, 4])
def test_ties_and_several_tasks_are_as_trying_every_exchange_says(digits: int) -> None:
    for seed in range(6):
        xs, ys = [scores(seed + 10 * t, 3 + t, 1, 0.6, digits)[:, 0] for t in (0, 1)], []
        ys = [scores(seed + 10 * t + 5, 4 - t, 1, 0.0, digits)[:, 0] for t in (0, 1)]
        assert exchange_test(xs, ys) == pytest.approx(brute_unpaired(xs, ys), abs=1e-12)
        ys = [scores(seed + 10 * t + 5, 3 + t, 1, 0.0, digits)[:, 0] for t in (0, 1)]
        assert exchange_test(xs, ys, paired=True) == pytest.approx(brute_paired(xs, ys), abs=1e-12)


def test_five_seeds_all_better_decide_unpaired_and_cannot_paired() -> None:
    ours, theirs = [[6.0, 7, 8, 9, 10]], [[1.0, 2, 3, 4, 5]]
    assert exchange_test(ours, theirs) == pytest.approx(2 / 252) == least_p(5)
    assert exchange_test(ours, theirs, paired=True) == pytest.approx(1 / 16) == least_p(5, paired=True)


def test_equal_runs_have_no_difference() -> None:
    same = [[1.0, 1.0, 1.0]]
    assert exchange_test(same, same) == exchange_test(same, same, paired=True) == 1.0
    assert probability_of_improvement(same, same) == 0.5


def test_a_small_gain_on_every_seed_is_seen_by_the_paired_test_only() -> None:
    seeds = np.arange(12) * 10.0
    assert exchange_test([seeds + 1], [seeds], paired=True) == pytest.approx(2**-11)
    assert exchange_test([seeds + 1], [seeds]) > 0.5


def test_runs_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        exchange_test([[1.0, 2.0]], [[1.0]], paired=True)
    with pytest.raises(ValueError, match="either side"):
        probability_of_improvement([[1.0]], [[]])


def test_holm_is_worked_by_hand_and_ignores_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    for order in permutations([0.001, 0.02, 0.02, 0.9]):
        adjusted = dict(zip(order, holm(order), strict=True))
        assert adjusted[0.001] == pytest.approx(0.004) and adjusted[0.02] == pytest.approx(0.06) and adjusted[0.9] == 0.9


# -- intervals and sizes ---------------------------------------------------------------------------------------------------


def test_the_score_interval_has_width_where_the_bootstrap_has_none() -> None:
    ours, theirs = [[6.0, 7, 8, 9, 10]], [[1.0, 2, 3, 4, 5]]
    assert bootstrap_improvement_interval(ours, theirs) == (1.0, 1.0)
    low, high = improvement_interval(1.0, [(5, 5)])
    assert high == 1.0 and low == pytest.approx(0.645, abs=0.003)
    assert improvement_interval(0.0, [(5, 5)]) == pytest.approx((0.0, 1 - low), abs=1e-9)
    assert improvement_interval(1.0, [(5, 5)] * 4).low > low


@pytest.mark.parametrize(("shift", "runs"), [(0.0, 5), (1.0, 5), (2.0, 5), (1.0, 20)])
def test_the_score_interval_covers(shift: float, runs: int) -> None:
    truth = stats.norm.cdf(shift / np.sqrt(2))
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(600):
        chance = probability_of_improvement([rng.normal(shift, 1, runs)], [rng.normal(0, 1, runs)])
        low, high = improvement_interval(chance, [(runs, runs)])
        covered.append(low <= truth <= high)
    assert np.mean(covered) > 0.92


@pytest.mark.parametrize("shift", [0.8, 1.2])
def test_so_many_seeds_are_about_enough(shift: float) -> None:
    truth = float(stats.norm.cdf(shift / np.sqrt(2)))
    needed = seeds_needed(truth)
    assert needed is not None
    rng = np.random.default_rng(1)
    found = [exchange_test([rng.normal(shift, 1, needed)], [rng.normal(0, 1, needed)]) <= 0.05 for _ in range(300)]
    assert 0.7 < np.mean(found) < 0.92


def test_so_many_pairs_are_about_enough() -> None:
    """Seeds matter more than the method: every run against every run would take hundreds of them."""
    rng = np.random.default_rng(2)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        start = rng.normal(0, 1, count)
        return start + rng.normal(0.25, 0.3, count), start + rng.normal(0, 0.3, count)

    x, y = drawn(2000)
    needed = paired_seeds_needed([x], [y])
    assert needed is not None and 10 < needed < 60
    assert (seeds_needed(probability_of_improvement([x], [y])) or 999) > 2 * needed
    found = []
    for _ in range(200):
        x, y = drawn(needed)
        found.append(exchange_test([x], [y], paired=True) <= 0.05)
    assert 0.68 < np.mean(found) < 0.92


def test_pairs_that_do_not_differ_never_decide_and_steady_ones_soon() -> None:
    assert paired_seeds_needed([[1.0, 2, 3]], [[1.0, 2, 3]]) is None and paired_seeds_needed([[1.0]], [[2.0]]) is None
    assert paired_seeds_needed([[11.0, 21, 31, 41]], [[10.0, 20, 30, 40]]) == 6  # the first at which 2 ** (1 - n) is below 0.05


def test_seeds_needed_says_when_it_is_too_many_and_never_fewer_than_can_decide() -> None:
    assert seeds_needed(0.5) is None and seeds_needed(0.55) is None
    assert seeds_needed(0.2) == seeds_needed(0.8)
    assert least_p(seeds_needed(1.0, alpha=0.05 / 10) or 0) <= 0.005
    assert (seeds_needed(0.7, tasks=4) or 0) < (seeds_needed(0.7) or 0)
