"""The running statistics that scale observations and rewards."""

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.rollout.normalise import ObservationNormaliser, RewardNormaliser, RunningMoments


def test_running_moments_equal_those_of_all_data_at_once():
    random = np.random.default_rng(0)
    batches = [random.normal(1e4, 1e-1, (rows, 3)) * [1, 5, 0] for rows in (1, 7, 2, 30)]
    moments = RunningMoments(3)
    for batch in batches:
        moments.update(batch)
    everything = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, everything.var(0), rtol=1e-6)
    copy = RunningMoments(3)
    copy.load_state(moments.state())
    moments.update(batches[0])
    np.testing.assert_allclose(copy.mean, everything.mean(0), rtol=1e-12)  # the state was a copy
    with pytest.raises(UserError, match="3 numbers, this task has 2"):
        RunningMoments(2).load_state(moments.state())


def test_observations_are_clipped_and_a_constant_one_is_zero():
    normaliser = ObservationNormaliser(2)
    normaliser.update(np.array([[0.0, 3.0], [1.0, 3.0]]))
    assert normaliser(np.array([[100.0, 3.0], [-100.0, 3.0]])).tolist() == [[10.0, 0.0], [-10.0, 0.0]]


def test_rewards_are_divided_by_the_spread_of_discounted_returns_that_end_with_episodes():
    normaliser, rewards = RewardNormaliser(2, gamma=0.5), np.array([[1.0, 2.0], [3.0, -1.0], [2.0, 0.5]])
    ends = np.array([[False, False], [True, False], [False, False]])
    scaled = [normaliser(reward, end) for reward, end in zip(rewards, ends, strict=True)]
    returns = [[1.0, 2.0], [3.5, 0.0], [2.0, 0.5]]  # the first environment starts anew in the third step
    for step in range(3):
        np.testing.assert_allclose(scaled[step], rewards[step] / np.sqrt(np.var(returns[: step + 1]) + 1e-8), rtol=1e-5)
    normaliser.restart()
    assert not normaliser.discounted.any() and normaliser.moments.count == 6


def test_rewards_without_any_spread_stay_as_they_are_and_large_ones_are_clipped():
    normaliser = RewardNormaliser(3, gamma=0.0)
    for _ in range(3):
        assert normaliser(np.full(3, 0.1), np.zeros(3, bool)).tolist() == pytest.approx([0.1] * 3)
    assert normaliser(np.array([0.1, 0.1, 5000.0]), np.zeros(3, bool)).max() < 10
    assert RewardNormaliser(2, gamma=0.0)(np.array([1e6, 1e6 + 1]), np.zeros(2, bool)).tolist() == [10.0, 10.0]
