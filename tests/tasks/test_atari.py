"""Atari games behind the standard preprocessing, in bytes."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
import torch
from rollout_calls import collect

from upslope.errors import MissingExtra, TaskError
from upslope.methods import find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task


def frames(task, seed: int, actions: list[int]) -> list[np.ndarray]:
    places = task.make(1)
    return [places.reset(0, seed), *(places.step(np.array([action]), [0]).observation[0] for action in actions)]


def test_the_standard_preprocessing_is_there_by_default():
    task = load_task("gym:ALE/Pong-v5")
    assert task.observation_shape == (4, 84, 84) and task.observation_dtype == np.uint8 and task.remarks == ()
    assert task.observation_size == 4 * 84 * 84 and task.max_episode_steps == 108_000 // 4
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
    env = gymnasium.wrappers.FrameStackObservation(env, 4)
    actions = [2, 3, 0, 2, 2]
    wanted = [env.reset(seed=5)[0], *(env.step(action)[0] for action in actions)]
    found = frames(task, 5, actions)
    assert all(each.dtype == np.uint8 for each in found) and np.array_equal(found, wanted) and found[-1].max() > 0


def test_other_processes_send_bytes():
    task = load_task("gym:ALE/Pong-v5")
    plain, spread = task.make(2), task.make(2, 2)
    try:
        for env in range(2):
            assert np.array_equal(plain.reset(env, env), spread.reset(env, env))
        one, other = (places.step(np.array([2, 3]), [0, 1]).observation for places in (plain, spread))
        assert other.dtype == np.uint8 and np.array_equal(one, other)
    finally:
        spread.close()
        plain.close()


@pytest.mark.parametrize(
    ("options", "shape", "limit"),
    [
        ("raw=true", (210, 160, 3), 27_000),
        ("raw=true,obs_type=ram", (128,), 27_000),
        ("frame_stack=1", (84, 84, 1), 27_000),
        ("screen_size=42,frame_stack=2", (2, 42, 42), 27_000),
        ("grayscale_obs=false,frame_stack=1,frame_skip=2", (84, 84, 3), 54_000),
        ("max_episode_steps=7,clip_rewards=true", (4, 84, 84), 7),
    ],
)
def test_options_change_the_view(options: str, shape: tuple[int, ...], limit: int):
    task = load_task(f"gym:ALE/Pong-v5:{options}")
    assert (task.observation_shape, task.max_episode_steps) == (shape, limit)


def test_a_time_limit_counts_steps_and_not_frames():
    places = load_task("gym:ALE/Pong-v5:max_episode_steps=3").make(1)
    places.reset(0, 0)
    assert [bool(places.step(np.array([0]), [0]).truncated[0]) for _ in range(3)] == [False, False, True]


def test_rewards_can_be_clipped():
    raw, clipped = (load_task(f"gym:ALE/Freeway-v5:clip_rewards={flag}").make(1)._envs[0] for flag in ("false", "true"))
    assert not isinstance(raw, gymnasium.wrappers.ClipReward) and isinstance(clipped, gymnasium.wrappers.ClipReward)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("frameskip=2", "give frame_skip"),
        ("obs_type=ram", "raw=true"),
        ("raw=true,frame_stack=2", "leave frame_stack out"),
        ("grayscale_obs=false", "frame_stack=1"),
        ("frame_stack=0", "frame_stack is 0; it must be at least 1"),
        ("noop_max=many", "noop_max is 'many'; it must be a whole number"),
    ],
)
def test_options_that_do_not_fit_are_told(options: str, said: str):
    with pytest.raises(TaskError, match=rf"gym:ALE/Pong-v5: .*{said}"):
        load_task(f"gym:ALE/Pong-v5:{options}")


def test_older_ids_are_found_too():
    assert load_task("gym:PongNoFrameskip-v4").observation_shape == (4, 84, 84) == load_task("gym:Pong-v4").observation_shape


def test_a_missing_opencv_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r"opencv.*not installed(?s:.*)\[atari\]"):
        load_task("gym:ALE/Pong-v5")


def test_ppo_looks_at_the_frames_through_convolutions():
    made = set_up(find("ppo"), "gym:ALE/Pong-v5", "tiny", Settings(steps=1, envs=1, horizon=2))
    rows = collect(made.rollout, 1)
    assert rows.inputs.observation.dtype == torch.uint8 and rows.inputs.observation.shape[:2] == (1, 2)
    torch.testing.assert_close(made.policy.evaluate(rows).logp, rows.behavior.logp, rtol=1e-4, atol=1e-5)
    made.rollout.close()
