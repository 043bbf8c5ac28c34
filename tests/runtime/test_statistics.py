"""Estimates against brute force, scipy and known coverage."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from upslope.errors import UserError
from upslope.runtime.statistics import (
    bootstrap_interval,
    interquartile_mean,
    pass_at_k,
    pass_at_k_each,
    stratified_bootstrap_interval,
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
