"""What environments forbid: read wherever they say it, and refused where it cannot be meant."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from choice_environments import CHOICES, Convention, Dials, Traps
from gymnasium import spaces

from upslope.errors import TaskError
from upslope.tasks.action_masks import as_mask, leaves_a_choice
from upslope.tasks.env_sources import FromFactory
from upslope.tasks.gym import GymTask


def task_of(env: Any, **options: Any) -> GymTask:
    return GymTask(FromFactory(env), **options)


class Changing(gymnasium.Env):
    """Shows these masks, one behind the other; ``None`` is none."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(3)

    def __init__(self, masks: tuple = (), ends: bool = False) -> None:
        self.masks, self.ends = masks, ends

    def _info(self) -> dict:
        mask = self.masks[self.time]
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.time = 0
        return np.zeros(1, np.float32), self._info()

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 0.0, self.ends, False, self._info()


@pytest.mark.parametrize("told", ["info", "method", "observation"])
@pytest.mark.parametrize("workers", [1, 2])
def test_masks_are_read_wherever_they_are_told(told: Convention, workers: int):
    task = task_of(Traps, told=told)
    envs = task.make(3, workers)
    assert envs.action_masks is None or workers > 1
    seen = np.stack([envs.reset(env, seed=env) for env in range(3)])
    assert seen.shape == (3, CHOICES) and task.observation_size == CHOICES  # a mask is no part of what a policy sees
    assert envs.action_masks.dtype == bool and envs.action_masks.shape == (3, CHOICES)
    assert envs.action_masks[seen.astype(bool)].all() and envs.action_masks.sum() < 3 * CHOICES
    before = envs.action_masks.copy()
    stepped = envs.step(seen[[0, 2]].argmax(-1), [0, 2])
    assert (envs.action_masks[1] == before[1]).all() and envs.action_masks[[0, 2]][stepped.observation.astype(bool)].all()
    assert (envs.action_masks[[0, 2]] != before[[0, 2]]).any()
    envs.close()


def test_without_masks_nothing_is_looked_for():
    envs = task_of(Traps, told="none").make(1)
    envs.reset(0, seed=0)
    envs.step(np.zeros(1, np.int64), [0])
    assert envs.action_masks is None
    envs.close()


def test_masks_of_several_components_stand_one_behind_the_other():
    envs = task_of(Dials, masked=True).make(1)
    envs.reset(0, seed=0)
    assert envs.action_masks.shape == (1, 9)
    assert (envs.action_masks[0] == np.concatenate(envs.simulator(0).allowed)).all()
    envs.close()


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        (([1, 0, 1], [0, 0, 0]), r"allows no action, from step\(0\) at step 1 of an episode"),
        (([0, 0, 0],), r"mask \[0, 0, 0\] allows no action, from reset\(\)"),
        (([1, 0, 1], None), "there was an action mask before, and here is none"),
        ((None, [1, 0, 1]), r"here is an action mask, and reset\(\) gave none"),
        (([1, 0],), "2 entries, and there are 3 choices"),
        (([0.0, -np.inf, 0.0],), "not of 0 and 1"),
        ((["a", "b", "c"],), "not of 0 and 1"),
    ],
    ids=["nothing allowed", "nothing at first", "none later", "only later", "too short", "of logits", "of text"],
)
def test_what_cannot_be_meant_is_refused_with_the_step(masks: tuple, said: str):
    envs = task_of(Changing, masks=masks).make(1)
    with pytest.raises(TaskError, match=f"Changing.*{said}.*Discrete\\(3\\)"):
        envs.reset(0)
        envs.step(np.zeros(1, np.int64), [0])


def test_where_an_episode_ends_a_mask_may_allow_nothing():
    envs = task_of(Changing, masks=([1, 0, 1], [0, 0, 0]), ends=True).make(1)
    envs.reset(0)
    assert envs.step(np.zeros(1, np.int64), [0]).terminated.all()
    assert envs.action_masks.all()  # nobody acts there, and no number comes of it


def test_masks_are_booleans_or_zeros_and_ones():
    for given in ([True, False, True], np.array([1, 0, 1], np.int8), (np.array([1.0, 0.0]), [1])):
        assert as_mask(given, 3).tolist() == [True, False, True]
    assert as_mask([[1, 0], [1, 1]], 2, 2).tolist() == [[True, False], [True, True]]
    assert leaves_a_choice(np.array([True, False, True]), ()) and not leaves_a_choice(np.array([True, True, False]), (2, 1))
