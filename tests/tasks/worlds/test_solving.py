"""Exact answers beside the slow way to them: iteration, simulation, and numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.tasks.worlds.solving import (
    best_of,
    gain,
    optimal_gain,
    optimal_values,
    policy_values,
    quadratic_cost,
    regulator,
)
from upslope.tasks.worlds.tables import Chain, FrozenLakeMap, RandomMDP, RiverSwim


@pytest.mark.parametrize("seed", range(3))
def test_the_best_values_are_those_of_value_iteration(seed: int):
    world = RandomMDP(states=12, actions=3, seed=seed)
    value = np.zeros(12)
    for _ in range(400):
        value = (world.reward + 0.9 * world.transition @ value).max(1)
    found = optimal_values(world.transition, world.reward, 0.9)
    np.testing.assert_allclose(found.max(1), value, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, world.reward + 0.9 * world.transition @ value, rtol=0, atol=1e-12)


def test_the_chain_by_hand():
    """From k steps before the end the reward of 1 is k - 1 discounts away; a step to the left wall costs one more."""
    world = Chain(states=5)
    found = optimal_values(world.transition, world.reward, 0.9)
    np.testing.assert_allclose(found[:5, 1], 0.9 ** np.arange(4, -1, -1), atol=1e-12)
    np.testing.assert_allclose(found[:5, 0], 0.9 ** np.array([5, 5, 4, 3, 2]), atol=1e-12)
    assert found[5].tolist() == [0.0, 0.0]


def test_values_of_a_policy_are_the_mean_of_what_it_earns():
    """Two states; the first action stays and pays the state's number, the second moves to the other for nothing."""
    transition = np.array([[[1.0, 0], [0, 1]], [[0, 1], [1, 0]]])
    reward = np.array([[1.0, 0.0], [2.0, 0.0]])
    half = np.full((2, 2), 0.5)
    # v0 = 0.25 (1 + v0) + 0.25 v1 + ... with discount 0.5: v0 = 0.5 + 0.25 v0 + 0.25 v1, v1 = 1 + 0.25 v1 + 0.25 v0
    found = policy_values(transition, reward, half, 0.5)
    assert (found * half).sum(1) == pytest.approx([1.25, 1.75])
    assert policy_values(transition, reward, np.array([0, 0]), 0.5)[:, 0] == pytest.approx([2.0, 4.0])


def test_the_gain_is_the_average_of_a_long_run():
    world = RiverSwim()
    best, chosen = optimal_gain(world.transition, world.reward)
    assert chosen.tolist() == [1] * 6
    here = np.full(6, 1 / 6)
    for _ in range(5000):
        here = here @ world.transition[:, 1]
    assert best == pytest.approx(float(here @ world.reward[:, 1]), abs=1e-12)
    assert gain(world.transition, world.reward, np.zeros(6, np.int64)) == pytest.approx(0.005)
    # With a discount near 1 the value of every state is the gain over what is missing to 1, but for a bounded rest.
    patient = optimal_values(world.transition, world.reward, 0.99999).max(1)
    assert patient * 0.00001 == pytest.approx(np.full(6, best), rel=1e-3)


def test_what_has_no_average_is_refused():
    with pytest.raises(UserError, match="in this one episodes end"):
        optimal_gain(Chain().transition, Chain().reward)
    apart = np.eye(2)[:, None, :]
    with pytest.raises(UserError, match="depends on where it starts"):
        gain(apart, np.array([[0.0], [1.0]]), np.array([0, 0]))


@pytest.mark.parametrize(("discount", "shape"), [(1.0, (2, 1, 2)), (-0.1, (2, 1, 2)), (0.9, (2, 2, 2))])
def test_what_cannot_be_solved_is_refused(discount: float, shape: tuple[int, ...]):
    with pytest.raises(UserError, match="must be"):
        optimal_values(np.full(shape, 0.5), np.zeros((2, 1)), discount)


def test_equal_actions_and_the_one_in_use():
    value = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0 + 1e-12]])
    assert best_of(value).tolist() == [0, 1]
    assert best_of(value, np.array([1, 2])).tolist() == [1, 2]
    assert best_of(value, np.array([2, 0])).tolist() == [0, 1]


def test_a_frozen_lake_has_the_table_of_gymnasiums():
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    from upslope.datasets.controllers import best_actions

    ours = FrozenLakeMap(size=5, seed=2)
    theirs = FrozenLakeEnv(desc=ours.map)
    assert best_of(optimal_values(ours.transition, ours.reward, 0.99)).tolist() == best_actions(theirs.P, 0.99).tolist()
    for state, choices in theirs.P.items():
        for action, outcomes in choices.items():
            if not ours.table.ends[state]:
                assert ours.reward[state, action] == pytest.approx(sum(chance * paid for chance, _, paid, _ in outcomes))


def test_costs_of_a_regulator_by_hand():
    """x' = x + u, cost x^2 + u^2: with u = -x the first step costs 2 x^2 and everything is 0 from then on."""
    one = np.eye(1)
    assert quadratic_cost(one, one, one, one, one, 10)[0, 0] == pytest.approx(2.0)
    golden = (1 + 5**0.5) / 2
    best = regulator(one, one, one, one)
    assert quadratic_cost(one, one, one, one, best, 100)[0, 0] == pytest.approx(golden)
