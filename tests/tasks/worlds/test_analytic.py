"""Worlds with a formula: the formula is right, and nothing near it is better."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from upslope.datasets.collecting import returns
from upslope.datasets.controllers import demand_scripted
from upslope.errors import TaskError
from upslope.tasks import load_task
from upslope.tasks.worlds.analytic import LQR, Fishery, Inventory, Newsvendor, TwoLinkArm
from upslope.tasks.worlds.solving import quadratic_cost, regulator

WORLDS = [LQR, Newsvendor, Inventory, Fishery, TwoLinkArm]


def episode(world: Any, act: Any, steps: int, seed: int = 0) -> np.ndarray:
    """Rewards of so many steps at the most."""
    seen, _ = world.reset(seed=seed)
    paid, over = [], False
    while not over and len(paid) < steps:
        seen, reward, over, _, _ = world.step(act(seen))
        paid.append(reward)
    return np.array(paid)


@pytest.mark.parametrize("kind", WORLDS)
def test_the_same_seed_is_the_same_episode(kind: Any):
    def play(seed: int) -> bytes:
        world = kind()
        return episode(world, world.best_action, 20, seed).tobytes()

    assert play(3) == play(3) != play(4)


def test_the_regulator_costs_what_riccati_says_and_its_neighbours_cost_more():
    world = LQR(size=3, controls=2, seed=4)
    unit, forces = np.eye(3), np.eye(2)
    world.reset(seed=1)
    start = world.x.copy()
    exact = quadratic_cost(world.A, world.B, unit, forces, world.K, 50)
    assert -episode(world, world.best_action, 50, 1).sum() == pytest.approx(float(start @ exact @ start), rel=1e-5)
    np.testing.assert_allclose(world.K, regulator(world.A, world.B, unit, forces))
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = quadratic_cost(world.A, world.B, unit, forces, world.K + 0.05 * rng.standard_normal(world.K.shape), 200)
        assert np.trace(other) > np.trace(quadratic_cost(world.A, world.B, unit, forces, world.K, 200))


@pytest.mark.parametrize("seed", range(5))
def test_the_regulators_actions_are_within_bounds(seed: int):
    world = LQR(size=3, seed=seed)
    assert np.abs(np.linalg.eigvals(world.A - world.B @ world.K)).max() < 1
    for corner in itertools.product([-1.0, 1.0], repeat=3):  # the start is among these, and all is linear
        x = np.array(corner)
        for _ in range(50):
            assert world.action_space.contains(world.best_action(x).astype(np.float32))
            x = (world.A - world.B @ world.K) @ x


def test_the_newsvendor_orders_the_quantile():
    world = Newsvendor(price=3.0, cost=1.0)
    order = float(world.best_action(np.array([2.0]))[0])
    assert 1 - math.exp(-order / 2.0) == pytest.approx((3.0 - 1.0) / 3.0)
    best = world.mean_reward(2.0, order)
    assert all(world.mean_reward(2.0, order + change) < best for change in (-0.1, 0.1))
    world.reset(seed=0)
    world.mean = 2.0
    paid = np.array([world.step(np.array([order]))[1] for _ in range(4000)])
    assert abs(paid.mean() - best) < 4 * paid.std() / 4000**0.5


def test_the_inventory_is_filled_to_the_quantile():
    world = Inventory(mean=1.0, holding=1.0, backlog=3.0)
    assert world.base_stock == pytest.approx(1.5)  # three quarters of [0, 2]
    best = world.mean_cost(1.5)
    assert best == pytest.approx((1.5**2 + 3 * 0.5**2) / 4) and all(world.mean_cost(1.5 + c) > best for c in (-0.1, 0.1))
    paid = episode(world, world.best_action, 4000)
    assert abs(-paid.mean() - best) < 4 * paid.std() / 4000**0.5
    world.reset(seed=2)
    for _ in range(50):  # an order that is always enough, and never below nothing
        order = float(world.best_action(np.array([world.stock]))[0])
        assert 0 <= order <= world.most
        world.step(np.array([order]))


def test_the_fishery_leaves_half_and_earns_the_largest_growth():
    world = Fishery(growth=0.8, capacity=2.0, noise=0.0)
    paid = episode(world, world.best_action, 30)
    assert paid[5:] == pytest.approx(np.full(25, 0.8 * 2.0 / 4), rel=1e-5)

    def leaving(share: float) -> float:
        return float(episode(world, lambda seen: np.array([max(0.0, 1 - share * 2.0 / seen[0])]), 200)[20:].mean())

    assert leaving(0.5) > leaving(0.45) and leaving(0.5) > leaving(0.55)
    empty = episode(world, lambda seen: np.array([1.0]), 30)
    assert len(empty) == 1  # and it is over


def test_the_arm_reaches_what_it_is_shown():
    world = TwoLinkArm(first=1.0, second=0.7)
    for seed in range(5):
        paid = episode(world, world.best_action, 50, seed)
        assert paid[-1] == pytest.approx(0.0, abs=1e-5) and paid[0] < -0.05
        for pose in world.poses(world.goal):
            assert world.hand(pose) == pytest.approx(world.goal, abs=1e-9)


@pytest.mark.parametrize("name", ["LQR", "Newsvendor", "Inventory", "Fishery", "TwoLinkArm"])
def test_experts_are_found_and_better_than_chance(name: str):
    from upslope.datasets.behaviours import RandomActions

    task: Any = load_task(f"gym:upslope/{name}-v0")
    expert, chance = (float(np.mean(returns(task, who, 20, 0, ""))) for who in (demand_scripted(task), RandomActions(task)))
    assert expert > chance


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("gym:upslope/LQR-v0:size=0", "size=0; it must be at least 1"),
        ("gym:upslope/Newsvendor-v0:price=1", "cost=1.0 and price=1; what is sold must cost something"),
        ("gym:upslope/Inventory-v0:mean=-1", "mean=-1; it must be at least"),
        ("gym:upslope/Fishery-v0:noise=1", "noise=1; between 0 and 1, above 0"),
    ],
)
def test_worlds_that_cannot_be(spec: str, told: str):
    with pytest.raises(TaskError) as refused:
        load_task(spec)
    assert told in str(refused.value)
