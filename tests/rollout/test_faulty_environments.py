"""Environments that raise, lie about their spaces, diverge or never end: one line says what, and which step it was."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from faulty_environment import FAULTS, Faulty

import upslope as up
from upslope.errors import TaskError
from upslope.policies.control.mlp import MLPPolicy
from upslope.report.live import LiveTable
from upslope.rollout import environments as rollout_envs
from upslope.rollout.environments import evaluate_control
from upslope.run import Plan, start
from upslope.runtime.settings import Settings
from upslope.tasks.gym import GymTask


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("Faulty-v0", entry_point=Faulty)
    yield
    gymnasium.registry.pop("Faulty-v0")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line(fault: str):
    where, _, says = FAULTS[fault]
    task = GymTask("Faulty-v0", fault=fault, disable_env_checker=True)
    with pytest.raises(TaskError) as told:
        evaluate_control(task, MLPPolicy.for_task(task), None, episodes=1, seed=0)
    said = str(told.value)
    assert said.startswith("gym:Faulty-v0 ") and says in said and "\n" not in said
    assert where == "reset" or "at step 3 of an episode" in said


@pytest.mark.parametrize("fault", ["step raises", "NaN paid", "a longer observation"])
def test_training_tells_it_too_and_leaves_a_checkpoint(fault: str, tmp_path: Path):
    with pytest.raises(TaskError, match=r"gym:Faulty-v0 .* at step 1 of an episode"):
        up.train(
            "ppo", f"gym:Faulty-v0:fault={fault},max_episode_steps=2,disable_env_checker=true", steps=1, envs=1, horizon=8,
            eval_problems=1, record="none", out=tmp_path / "run",
        )  # fmt: skip
    assert (tmp_path / "run" / "checkpoints" / "step-000000").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["step raises", "NaN paid"])
def test_a_fault_in_a_process_of_its_own_is_told_in_one_line(fault: str):
    envs = GymTask("Faulty-v0", fault=fault, disable_env_checker=True).make(2, 2)
    for env in range(2):
        envs.reset(env, 0)
    with pytest.raises(TaskError) as told:
        for _ in range(3):
            envs.step(np.array([0]), [1])
    envs.close()
    assert str(told.value).startswith("gym:Faulty-v0 failed in a process of its own: ") and FAULTS[fault][2] in str(told.value)
    assert "\n" not in str(told.value) and "at step 3" in str(told.value)


def test_a_discrete_observation_outside_of_its_space_is_told():
    task = GymTask("FrozenLake-v1")
    envs = task.make(1)
    envs.reset(0, 0)
    envs._envs[0].step = lambda action: (-1, 0.0, False, False, {})
    with pytest.raises(TaskError, match=r"-1 is not in Discrete\(16\)"):
        envs.step(np.array([0]), [0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n", "SyntaxError"),
        ("1 / 0\n", "could not be made: ZeroDivisionError: division by zero"),
        ("import not_there_at_all\n", "not_there_at_all"),
        ("import gymnasium\nclass E(gymnasium.Env):\n    def __init__(self): {}['map']\n", "could not be made: KeyError: 'map'"),
        ("import sys\nsys.exit(0)\n", "could not be made: SystemExit: 0"),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_be_made_is_told(text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_env.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_env", raising=False)
    monkeypatch.setitem(gymnasium.registry, "Own-v0", gymnasium.envs.registration.EnvSpec("Own-v0", entry_point="own_env:E"))
    with pytest.raises(TaskError) as told:
        GymTask("Own-v0")
    assert says in str(told.value) and "\n" not in str(told.value).strip()


# -- without an end --------------------------------------------------------------------------------------------------------


def test_an_environment_that_never_ends_is_cut_in_evaluation_and_that_is_said(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(rollout_envs, "MOST_WATCHED", 20)
    monkeypatch.setattr("upslope.rollout.recorded_episode.MOST_WATCHED", 20)
    settings = Settings(steps=2, envs=2, horizon=16, eval_problems=12)
    with LiveTable(terminal=False) as watcher:
        run = start(Plan(up.method("ppo"), "gym:Faulty-v0", settings=settings), out=tmp_path / "run", watcher=watcher)
    said = capsys.readouterr().err
    assert "note: gym:Faulty-v0 has no time limit. An episode of an evaluation is cut after 10,000 steps; " in said
    assert "gym:Faulty-v0:max_episode_steps=500" in said
    assert [record["score"] for record in run.evaluations] == [20.0, 20.0] and len(run.metrics) == 2


def test_a_limit_that_is_given_holds_and_nothing_is_remarked():
    task = GymTask("Faulty-v0", max_episode_steps=7)
    assert task.remarks == () and GymTask("CartPole-v1").remarks == ()
    assert evaluate_control(task, MLPPolicy.for_task(task), None, episodes=3, seed=0) == [7.0] * 3
    assert GymTask("CartPole-v1", max_episode_steps=-1).max_episode_steps is None
