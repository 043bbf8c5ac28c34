"""Estimates against brute force, scipy and known coverage."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from upslope.errors import UserError
from upslope.runtime.statistics import (
    bootstrap_interval,
    difference_interval,
    interquartile_mean,
    pass_at_k,
    pass_at_k_each,
    share_interval,
    stratified_bootstrap_interval,
    student_quantile,
    wilson_interval,
)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n):
    for c in range(n + 1):
        outcomes = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_averages_over_problems_with_different_numbers_of_samples():
    each = pass_at_k_each([4, 10], [1, 5], 2)
    np.testing.assert_allclose(each, [0.5, 1 - 10 / 45])
    assert pass_at_k([4, 10], [1, 5], 2) == pytest.approx(each.mean())


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)


def test_pass_at_k_refuses_more_than_was_sampled():
    with pytest.raises(UserError, match=r"pass@16 .* 8"):
        pass_at_k([8, 32], [1, 1], 16)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 100])
def test_interquartile_mean_is_scipys_trimmed_mean(size):
    values = np.random.default_rng(size).normal(size=size)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_one_lucky_seed_does_not_move_the_interquartile_mean():
    assert interquartile_mean([[1.0, 1.0], [1.0, 1000.0]]) == 1.0


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 10), (50, 100), (10, 10), (499, 500)])
def test_wilson_interval_is_scipys(successes, n):
    theirs = stats.binomtest(successes, n).proportion_ci(0.9, method="wilson")
    assert wilson_interval(successes, n, level=0.9) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_interval_without_trials_says_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_bootstrap_of_a_mean_has_about_the_width_of_the_normal_interval():
    values = np.random.default_rng(0).normal(size=400)
    interval = bootstrap_interval(values)
    assert interval.low < values.mean() < interval.high
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_bootstrap_repeats_with_its_seed_and_only_with_it():
    values = np.arange(20.0)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)


def test_bootstrap_keeps_what_belongs_to_a_problem_together():
    pairs = np.stack([np.arange(30.0), -np.arange(30.0)], axis=1)
    assert bootstrap_interval(pairs, statistic=np.sum) == (0.0, 0.0)


def test_strata_are_drawn_each_on_their_own():
    # Between the tasks lies everything, within them nothing: only a plain bootstrap would see a spread.
    assert stratified_bootstrap_interval([[0.0, 0.0], [10.0, 10.0, 10.0]], statistic=np.mean) == (6.0, 6.0)
    assert bootstrap_interval([0.0, 0.0, 10.0, 10.0, 10.0]).low < 5


def test_nothing_has_no_interval():
    with pytest.raises(ValueError):
        bootstrap_interval([])
    with pytest.raises(ValueError):
        stratified_bootstrap_interval([[1.0], []])


# -- shares over problems --------------------------------------------------------------------------------------------------


def test_no_interval_of_a_share_has_width_zero():
    assert share_interval([1.0] * 100) == wilson_interval(100, 100) == pytest.approx((0.963, 1.0), abs=5e-4)
    assert share_interval([0.0] * 7) == wilson_interval(0, 7) and share_interval([0.0, 1.0, 1.0]) == wilson_interval(2, 3)
    assert share_interval([0.5] * 100) == pytest.approx((0.4815, 0.5185), abs=5e-5)  # z^2 / 2 (100 + z^2) either way
    nearly = share_interval([1.0] * 99 + [15 / 16])
    assert nearly.low == pytest.approx(0.955, abs=5e-4) and nearly.high == 1.0
    with pytest.raises(ValueError, match="from 0 to 1"):
        share_interval([1.2])


@pytest.mark.parametrize(
    ("shape", "problems", "samples", "k", "held", "bootstrap"),
    [
        ((0.5, 0.5), 100, 16, 8, 0.954, 0.926),
        ((2.0, 2.0), 20, 16, 8, 0.960, 0.730),
        ((8.0, 0.5), 100, 8, 1, 0.956, 0.952),
        ((0.3, 8.0), 20, 8, 1, 0.978, 0.852),
        ((20.0, 0.2), 100, 16, 4, 1.000, 0.282),
    ],
)
def test_the_interval_of_pass_at_k_holds_the_truth(shape, problems, samples, k, held, bootstrap):
    """Problems are solved with chances from a beta distribution; the truth is the mean over many of them."""
    rng = np.random.default_rng(7)
    truth = float((1 - (1 - rng.beta(*shape, 400_000)) ** k).mean())
    chance = pass_at_k_each([samples] * (samples + 1), list(range(samples + 1)), k)
    ours, theirs = [], []
    for _ in range(500):
        values = chance[rng.binomial(samples, rng.beta(*shape, problems))]
        low, high = share_interval(values)
        ours.append(low <= truth <= high)
        drawn = values[rng.integers(0, problems, (200, problems))].mean(1)
        below, above = np.quantile(drawn, [0.025, 0.975])
        theirs.append(below <= truth <= above)
    assert (np.mean(ours), np.mean(theirs)) == pytest.approx((held, bootstrap), abs=1e-9)
    assert np.mean(ours) >= 0.94


def test_the_quantile_of_student_is_scipys():
    for degrees in (1, 2, 3, 4, 9, 30, 200):
        assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-5)


def test_the_interval_of_a_difference_is_newcombes():
    # Newcombe (1998), table II, 56/70 - 48/80: method 10 gives 0.0524 to 0.3339
    before, after = wilson_interval(48, 80), wilson_interval(56, 70)
    assert difference_interval(48 / 80, before, 56 / 70, after) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    full = wilson_interval(10, 10)
    assert difference_interval(1.0, full, 1.0, full).low < 0 < difference_interval(1.0, full, 1.0, full).high
