"""Environments spread over processes: the same rollouts, plain errors, and no process left behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from fragile_environment import Fragile
from rollout_calls import collect

from upslope.errors import TaskError
from upslope.policies.control.mlp import MLPPolicy
from upslope.rollout.environments import EnvRollout
from upslope.tasks.gym import GymTask


@pytest.fixture(scope="module", autouse=True)
def fragile():
    gymnasium.register("Fragile-v0", entry_point=Fragile)
    yield
    gymnasium.registry.pop("Fragile-v0")


def collected(task: GymTask, workers: int, envs: int = 3):
    policy = MLPPolicy.for_task(task, seed=3)
    policy.add_value_head(4)
    sampler = EnvRollout(task, policy, envs=envs, horizon=30, seed=5, gamma=0.9, normalise_observations=True,
                         normalise_rewards=True, workers=workers)  # fmt: skip
    try:
        rows = [collect(sampler, step) for step in range(2)]
    finally:
        sampler.close()
    return rows, sampler.finished()


@pytest.mark.parametrize(("env", "workers"), [("Fragile-v0", 2), ("CartPole-v1", 3), ("Pendulum-v1", 9)])
def test_processes_change_nothing_of_a_rollout(env, workers):
    task = GymTask(env)
    (one, ended), (other, other_ended) = collected(task, 1), collected(task, workers)
    for plain, spread in zip(one, other, strict=True):
        assert torch.equal(plain.inputs.observation, spread.inputs.observation)
        assert torch.equal(plain.action, spread.action) and torch.equal(plain.step_reward, spread.step_reward)
        assert torch.equal(plain.ended, spread.ended) and torch.equal(plain.bootstrap, spread.bootstrap)
    assert ended == other_ended and (env == "Pendulum-v1" or len(ended) > 3)


def test_some_of_the_environments_can_be_stepped_alone():
    task = GymTask("CartPole-v1")
    one, other = task.make(5), task.make(5, 2)
    for envs in (one, other):
        for env in range(5):
            envs.reset(env, env)
    for which in ([0, 1], [3, 4], [1, 3], [0, 1, 2, 3, 4]):
        actions = np.array(which) % 2
        for plain, spread in zip(one.step(actions, which), other.step(actions, which), strict=True):
            assert np.array_equal(plain, spread)
    assert np.array_equal(one.reset(4), other.reset(4)) and len(other) == 5
    other.close()


def processes(envs) -> list[subprocess.Popen]:
    return [worker.process for worker in envs._workers]


@pytest.mark.slow
def test_an_error_in_a_process_is_told_with_its_cause():
    envs = GymTask("Fragile-v0", how="breaks").make(2, 2)
    envs.reset(0, 0), envs.reset(1, 1)
    envs.step(np.array([0, 1]), [0, 1])
    with pytest.raises(TaskError, match=r"(?s)gym:Fragile-v0 failed in a process of its own.*the pole is on fire"):
        envs.step(np.array([0, 2]), [0, 1])
    envs.close()
    assert [process.returncode for process in processes(envs)] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("death", ["by itself", "from outside"])
def test_a_process_that_is_gone_is_told(death):
    envs = GymTask("Fragile-v0", how="dies").make(2, 2)
    envs.reset(0, 0), envs.reset(1, 1)
    if death == "from outside":
        processes(envs)[0].kill()
        processes(envs)[0].wait()
    with pytest.raises(TaskError, match=f"has ended by itself, with code {7 if death == 'by itself' else -9}.*--env-workers 1"):
        envs.step(np.array([0, 2]), [0, 1])
    envs.close()


def test_an_interrupt_is_the_parents_to_handle_and_closing_ends_every_process():
    envs = GymTask("CartPole-v1").make(2, 2)
    (process,) = processes(envs)
    process.send_signal(signal.SIGINT)
    envs.reset(0, 0), envs.reset(1, 1)
    assert len(envs.step(np.array([0, 1]), [0, 1]).reward) == 2
    envs.close()
    assert process.returncode == 0
    envs.close()  # twice does no harm


def test_a_parent_that_is_killed_leaves_no_process_behind(tmp_path):
    code = (
        "import os, signal\nfrom upslope.tasks.gym import GymTask\nenvs = GymTask('CartPole-v1').make(2, 2)\nenvs.reset(1, 0)\n"
        "print(envs._workers[0].process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Without a guard for the main module: a script of a user need not have one.
    script = tmp_path / "script.py"
    script.write_text(code)
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    worker = int(found.stdout)
    for _ in range(100):
        try:
            with open(f"/proc/{worker}/stat") as stat:
                if stat.read().split()[2] == "Z":
                    return
        except FileNotFoundError:
            return
        signal.sigtimedwait([], 0.1)
    pytest.fail(f"process {worker} is still there")
