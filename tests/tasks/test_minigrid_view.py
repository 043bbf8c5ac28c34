"""MiniGrid's cells as numbers or as a picture; its mission is left out and said."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.tasks import load_task


def test_cells_are_one_hot_as_minigrids_own_wrapper_has_them():
    task = load_task("gym:MiniGrid-DoorKey-5x5-v0")
    from minigrid.wrappers import OneHotPartialObsWrapper

    theirs = OneHotPartialObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0"))
    places, random = task.make(1), np.random.default_rng(0)
    seen, wanted = places.reset(0, 4), theirs.reset(seed=4)[0]
    for action in random.integers(0, 7, 60):
        expected = np.concatenate([np.eye(4)[wanted["direction"]], wanted["image"].reshape(-1)])
        assert (seen == expected).all()
        stepped, (wanted, *_) = places.step(np.array([action]), [0]), theirs.step(action)
        seen = stepped.observation[0]


def test_the_mission_is_left_out_and_said():
    (remark,) = load_task("gym:MiniGrid-Empty-5x5-v0").remarks
    assert "mission" in remark and "left out" in remark


def test_a_picture_of_what_it_sees():
    task = load_task("gym:MiniGrid-Empty-5x5-v0:view=image")
    assert task.observation_shape == (56, 56, 3) and task.observation_dtype == np.uint8 and "mission" in task.remarks[0]
    assert len(np.unique(task.make(1).reset(0, 0))) > 3


def test_another_view_is_refused_with_those_there_are():
    with pytest.raises(TaskError, match=r"view is 'imgae'; it must be flat .* or image .*Did you mean 'image'"):
        load_task("gym:MiniGrid-Empty-5x5-v0:view=imgae")
