"""Environments of other packages, found by their ids alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import upslope as up
from upslope.errors import MissingExtra, TaskError
from upslope.rollout.deployed import DeployedPolicy
from upslope.tasks import load_task
from upslope.tasks.env_packages import PACKAGES, package_of


@pytest.mark.parametrize(
    ("spec", "shape", "limit"),
    [
        ("gym:PointMaze_UMaze-v3", (8,), 300),
        ("gym:AntMaze_UMaze-v5", (109,), 700),
        ("gym:MiniGrid-Empty-5x5-v0", (984,), 100),
        ("gym:pointmaze-medium-v0", (2,), 1000),
        pytest.param("gym:cube-single-v0", (28,), 200, marks=pytest.mark.slow),
        ("gym:cube-single-singletask-task1-v0", (28,), 200),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_id_is_enough(spec: str, shape: tuple[int, ...], limit: int):
    task = load_task(spec)
    assert task.name == spec and task.observation_shape == shape and task.max_episode_steps == limit
    places = task.make(1)
    first = places.reset(0, 3)
    action = np.zeros((1, task.action_size), np.float32) if task.continuous else np.zeros(1, np.int64)
    stepped = places.step(action, [0])
    assert first.shape == shape and stepped.observation.shape == (1, *shape) and stepped.observation.dtype == np.float32
    places.close()


def test_nothing_is_imported_by_the_user_or_before_it_is_needed():
    names = [each.module for each in PACKAGES]
    code = (
        "import sys; from upslope.tasks import load_task\n"
        "load_task('gym:CartPole-v1'); load_task('gym:CartPole')\n"
        f"print([name for name in {names} if name in sys.modules])\n"
        "print(load_task('gym:MiniGrid-Empty-5x5-v0').action_size)\n"
        f"print([name for name in {names} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "7", "['minigrid']"]


def test_importing_says_nothing_and_leaves_gymnasiums_own_as_they_are():
    code = (
        "from upslope.tasks import load_task; from upslope.errors import TaskError\n"
        "load_task('gym:PointMaze_UMaze-v3')\n"
        "try: load_task('gym:HalfCheetah-v3')\nexcept TaskError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "Did you mean 'HalfCheetah-v5'" in done.stdout and "AdroitHand" not in done.stderr


@pytest.mark.parametrize(
    ("env_id", "package"), [("ALE/Pong-v5", "atari"), ("cube-single-v0", "ogbench"), ("PointMaze_X-v3", "robotics")]
)
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, env_id: str, package: str):
    found = importlib.util.find_spec
    theirs = [each.module for each in PACKAGES]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in theirs else found(name, *rest))
    for known in [each for each in gymnasium.registry if package_of(each)]:
        monkeypatch.delitem(gymnasium.registry, known)
    with pytest.raises(MissingExtra, match=rf"gym:{env_id} is an environment of .*not installed(?s:.*)pip install .*\[{package}\]"):
        load_task(f"gym:{env_id}")


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("PointMaze_Umaze-v3", "PointMaze_UMaze-v3"),
        ("MiniGrid-Emty-5x5-v0", "MiniGrid-Empty-5x5-v0"),
        ("cube-singel-v0", "cube-single-v0"),
        ("Minigrid-Empty-5x5-v0", "MiniGrid-Empty-5x5-v0"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest(env_id: str, near: str):
    with pytest.raises(TaskError, match=f"{env_id!r}.*Did you mean '{near}'"):
        load_task(f"gym:{env_id}")


@pytest.mark.filterwarnings("ignore")
def test_robots_that_do_not_go_with_this_mujoco_are_told():
    with pytest.raises(TaskError, match=r"gym:FetchReach-v4 cannot be made.*gymnasium-robotics 1\.4.*mujoco 4.*PointMaze"):
        load_task("gym:FetchReach-v4")
    with pytest.raises(TaskError, match="mujoco_py"):
        load_task("gym:FetchReach-v1")


@pytest.mark.slow
def test_a_run_in_a_maze_goes_on_and_answers(tmp_path):
    small = dict(steps=1, envs=2, horizon=16, passes=1, eval_problems=1, record="none", threads=1, env_workers=2)
    run = up.train("ppo", "gym:PointMaze_UMaze-v3:max_episode_steps=20", **small, out=tmp_path / "run")
    again = up.load(run.path)
    env = gymnasium.make("PointMaze_UMaze-v3")
    seen, _ = env.reset(seed=0)
    action, _ = again.predict(seen, deterministic=True)
    assert env.action_space.contains(action)
    both = {key: np.stack([value, value]) for key, value in seen.items()}
    several, _ = again.predict(both, deterministic=True)
    assert several.shape == (2, 2) and np.allclose(several, action, rtol=0, atol=1e-6)  # a product of two rows rounds otherwise
    deployed: DeployedPolicy = again.controller
    flat = gymnasium.spaces.flatten(env.observation_space, seen).astype(np.float32)
    assert deployed._flat(seen)[0].tolist() == [flat.tolist()]
    for wrong, said in (
        ({"observation": seen["observation"]}, "no part 'achieved_goal'"),
        (seen["observation"], "no observation of"),
    ):
        with pytest.raises(up.UserError, match=said):
            again.predict(wrong)
    with pytest.raises(up.UserError, match="only a policy on a Box of numbers"):
        again.export(tmp_path / "policy.pt")
