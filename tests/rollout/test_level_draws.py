"""Levels of successive episodes: by counter, so that a stop changes nothing."""

from __future__ import annotations

from upslope.rollout.level_draws import LevelDraws
from upslope.tasks import load_task
from upslope.tasks.levels import Levels


def test_levels_are_a_function_of_seed_step_environment_and_number():
    levels = load_task("gym:Pendulum-v1:levels.gravity=[8,12]").levels
    draws, again = LevelDraws(levels, 3, 2), LevelDraws(levels, 3, 2)
    for step in (1, 5):
        draws.restart(step)
        first = [[draws.next(env) for _ in range(3)] for env in range(2)]
    again.restart(5)  # another order, nothing before
    assert [[again.next(env) for _ in range(3)] for env in (1, 0)] == first[::-1]
    assert len({level for row in first for level in row}) == 6 and draws.playing == [first[0][-1], first[1][-1]]


def test_without_levels_there_is_one_task():
    draws = LevelDraws(Levels(), 0, 2)
    assert draws.next(0) is None and draws.task_id(0, "gym:CartPole-v1") == draws.task_id(1, "gym:CartPole-v1")
