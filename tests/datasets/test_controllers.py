"""Controllers written by hand do what they are for; numbers behind them are checked by hand."""

import numpy as np
import pytest

from upslope.datasets.behaviours import RandomActions
from upslope.datasets.collecting import returns
from upslope.datasets.controllers import best_actions, demand_scripted, regulator, scripted, shortest_path
from upslope.errors import UserError
from upslope.tasks import load_task


@pytest.mark.parametrize(
    ("task", "least"),
    [
        ("gym:Pendulum-v1", -400.0),  # a whole swing and upright from then on; random actions return about -1200
        ("gym:CartPole-v1", 500.0),
        ("gym:MountainCarContinuous-v0", 85.0),
        ("gym:MountainCar-v0", -130.0),
        ("gym:FrozenLake-v1:is_slippery=false", 1.0),
        ("gym:CliffWalking-v1", -13.0),
    ],
)
def test_every_episode_goes_well(task: str, least: float):
    made = load_task(task)
    controller = demand_scripted(made)  # type: ignore[arg-type]
    found = returns(made, controller, 10, 3, "")  # type: ignore[arg-type]
    assert min(found) >= least


def test_nobody_wrote_one_for_the_hopper():
    task = load_task("gym:Hopper-v5")
    assert scripted(task) is None  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"gym:Hopper-v5 has no scripted controller; Pendulum, CartPole, .*--from RUN"):
        demand_scripted(task)  # type: ignore[arg-type]


def test_the_regulator_of_one_number():
    """x' = x + u, cost x^2 + u^2: the Riccati equation p = 1 + p - p^2 / (1 + p) has the golden ratio, and K = p / (1 + p)."""
    golden = (1 + 5**0.5) / 2
    one = np.eye(1)
    assert regulator(one, one, one, one)[0, 0] == pytest.approx(golden / (1 + golden))


def test_the_shortest_path_goes_around_walls():
    maze = [[1, 1, 1, 1, 1], [1, "r", 1, "g", 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
    assert shortest_path(maze, (1, 1), (1, 3)) == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (2, 3), (1, 3)]
    assert shortest_path(maze, (1, 1), (1, 1)) == [(1, 1)]
    assert shortest_path([[0, 1, 0]], (0, 0), (0, 2)) == []


def test_the_best_actions_of_a_table_by_hand():
    """From 0 the first action pays 1 and ends; the second leads to 1 for nothing, where the second pays 3 and ends."""
    table = {
        0: {0: [(1.0, 0, 1.0, True)], 1: [(1.0, 1, 0.0, False)]},
        1: {0: [(1.0, 0, 0.0, False)], 1: [(0.5, 1, 3.0, True), (0.5, 1, 3.0, True)]},
    }
    assert best_actions(table, 0.9).tolist() == [1, 1]
    assert best_actions(table, 0.3).tolist() == [0, 1]  # 0.3 * 3 is less than 1


def test_random_actions_fill_the_space_and_no_more():
    pendulum, cart = load_task("gym:Pendulum-v1"), load_task("gym:CartPole-v1")
    for share, most in ((1.0, 2.0), (0.25, 0.5)):
        who = RandomActions(pendulum, share)  # type: ignore[arg-type]
        who.begin(None, np.zeros(3), np.random.default_rng(0))
        drawn = np.array([who.act(np.zeros(3)) for _ in range(500)])
        assert drawn.shape == (500, 1) and 0.95 * most < np.abs(drawn).max() <= most and abs(drawn.mean()) < 0.1 * most
    choices = RandomActions(cart)  # type: ignore[arg-type]
    choices.begin(None, np.zeros(4), np.random.default_rng(0))
    assert {choices.act(np.zeros(4)) for _ in range(50)} == {0, 1}
