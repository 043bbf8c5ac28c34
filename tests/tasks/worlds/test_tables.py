"""Worlds of few states: they move by their tables, seeded to the bit, and their experts earn what the table says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.tasks import list_tasks, load_task
from upslope.tasks.worlds.names import WORLDS
from upslope.tasks.worlds.solving import policy_values
from upslope.tasks.worlds.tables import Bandit, Chain, CombinationLock, FrozenLakeMap, RandomMDP, RiverSwim

TABLES = [RandomMDP, Chain, RiverSwim, CombinationLock, FrozenLakeMap, Bandit]


def world_of(spec: str) -> Any:
    return load_task(spec).make_one().unwrapped  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_one(kind: Any):
    world = kind()
    assert (world.table.move >= 0).all() and np.allclose(world.table.move.sum(2), 1)
    assert world.table.start.sum() == pytest.approx(1) and world.reward.shape == world.transition.shape[:2]
    # Whoever is at the end stays nowhere, and is paid nothing more.
    assert not world.transition[:, :, world.table.ends].any() and not world.reward[world.table.ends].any()


@pytest.mark.parametrize("kind", TABLES)
def test_what_happens_is_what_the_table_says(kind: Any):
    """Frequencies of next states and mean rewards of one pair, each within five standard errors."""
    world, count = kind(), 4000
    world.reset(seed=0)
    state, action = int(world.table.start.argmax()), world.action_space.n - 1
    seen, paid = np.zeros(len(world.reward)), np.zeros(count)
    for number in range(count):
        world.state = state
        found, paid[number], over, _, _ = world.step(action)
        seen[found] += 1
        assert over == world.table.ends[found]
    chance = world.table.move[state, action]
    assert (np.abs(seen / count - chance) <= 5 * np.sqrt(chance * (1 - chance) / count)).all()
    assert abs(paid.mean() - world.reward[state, action]) <= 5 * paid.std() / count**0.5 + 1e-12


@pytest.mark.parametrize("kind", [RandomMDP, CombinationLock, FrozenLakeMap, Bandit])
def test_a_seed_is_a_world(kind: Any):
    def tables(seed: int) -> bytes:
        return kind(seed=seed).reward.tobytes() + kind(seed=seed).transition.tobytes()

    assert tables(1) == tables(1) != tables(2)


def test_random_worlds_branch_as_asked():
    world = RandomMDP(states=9, actions=2, branching=4, seed=5)
    assert ((world.transition > 0).sum(2) == 4).all() and world.observation_space.n == 9 and world.action_space.n == 2


def test_the_lock_opens_by_its_combination_only():
    world = CombinationLock(length=4, actions=3, seed=1)
    world.reset(seed=0)
    steps = [world.step(int(right)) for right in world.combination]
    assert [step[1] for step in steps] == [0, 0, 0, 1] and steps[-1][2]
    world.reset(seed=0)
    world.step(int(world.combination[0]))
    assert world.step(int(world.combination[1] + 1) % 3)[0] == 0
    assert world.best.tolist()[:4] == world.combination.tolist()


def test_the_expert_of_a_random_world_earns_what_its_values_say():
    """50 steps without a discount, beside the same policy simulated: the mean over 300 starts within four standard errors."""
    world = RandomMDP(states=8, seed=3)
    value = np.zeros(8)
    for _ in range(50):
        value = (world.reward + world.transition @ value)[np.arange(8), world.best]
    exact, rng = float(value.mean()), np.random.default_rng(0)
    earned = []
    for episode in range(300):
        state, _ = world.reset(seed=int(rng.integers(1 << 30)) + episode)
        total = 0.0
        for _ in range(50):
            state, paid, *_ = world.step(int(world.best[state]))
            total += paid
        earned.append(total)
    assert abs(np.mean(earned) - exact) <= 4 * np.std(earned) / 300**0.5
    others = [policy_values(world.transition, world.reward, np.full(8, action), 0.999).mean() for action in range(4)]
    assert policy_values(world.transition, world.reward, world.best, 0.999).max(1).mean() > max(others)


def test_they_are_found_without_an_import_and_listed():
    listed = {info.name: info for info in list_tasks()}
    for name in WORLDS:
        assert listed[f"gym:{name}"].domain == "control" and load_task(f"gym:{name}").name == f"gym:{name}"
    assert world_of("gym:upslope/RandomMDP-v0:states=6,actions=2,seed=3").reward.shape == (6, 2)
    assert load_task("gym:upslope/Chain-v0:max_episode_steps=7").max_episode_steps == 7  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("gym:upslope/Chain-v0:states=0", "states=0; it must be at least 1"),
        ("gym:upslope/Chain-v0:slip=2", "slip=2; it must be between 0 and 1"),
        ("gym:upslope/RandomMDP-v0:branching=21", "branching=21; it must be between 1 and the number of states, 20"),
        ("gym:upslope/Bandit-v0:arms=0", "arms=0; it must be at least 1"),
        ("gym:upslope/FrozenLake-v0:frozen=0.1", "frozen=0.1; it must be at least 0.5"),
    ],
)
def test_worlds_that_cannot_be(spec: str, told: str):
    with pytest.raises(TaskError) as refused:
        load_task(spec)
    assert told in str(refused.value)
