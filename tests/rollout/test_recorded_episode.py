"""A recorded episode: what it earned, and what the critic had expected."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import upslope as up
from upslope.objective.critics import ExpectileValue, QFunction
from upslope.objective.networks import MLPEnsemble
from upslope.policies.control.networks import Deterministic, GreedyChoice, Stochastic
from upslope.rollout.recorded_episode import RecordedEpisode, play
from upslope.tasks.gym import GymTask


def test_returns_to_go_are_discounted():
    episode = RecordedEpisode(0, [1.0, 0.0, 4.0], [0, 0, 0], "terminated", [1.0, 2.0, 3.0], gamma=0.5)
    assert episode.returns_to_go == [2.0, 2.0, 4.0]
    assert episode.record(3)["returns_to_go"] == [2.0, 2.0, 4.0] and episode.record(3)["gamma"] == 0.5


def test_without_a_critic_there_is_nothing_beside_the_rewards():
    task = GymTask("Pendulum-v1")
    played = play(task, Deterministic(hidden=(4,)).build(task, 0), None, 3, gamma=0.9)
    assert played.values == [] and "returns_to_go" not in played.record(1)


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_critics_say_the_smallest_value_of_the_action_that_was_taken(name: str):
    task = GymTask(name)
    policy = (Stochastic(hidden=(4,)) if task.continuous else GreedyChoice()).build(task, 0)
    policy.add_model("q", QFunction(network=MLPEnsemble(members=3, hidden=(8,))), 1)
    actor, seen = policy.acting(), np.random.default_rng(0).normal(size=(5, task.observation_size)).astype(np.float32)
    output = actor.output(seen)
    action = actor.choose(output, np.empty(0), True)
    inputs = torch.from_numpy(seen)
    stack = policy.networks["q"].stack
    if task.continuous:
        wanted = stack(torch.cat([inputs, torch.from_numpy(action) / 2], -1), True)[..., 0]  # torques reach to 2
    else:
        wanted = stack(inputs, True)[:, torch.arange(5), torch.from_numpy(action)]
    judged = actor.judged(seen, output, action)
    np.testing.assert_allclose(judged, wanted.amin(0), rtol=1e-5)
    policy.add_model("value", ExpectileValue(network=MLPEnsemble(members=1, hidden=(8,))), 2)
    stated = policy.networks["value"].stack(inputs, True)[0, :, 0]
    np.testing.assert_allclose(actor.judged(seen, output, action), stated, rtol=1e-5)


@pytest.mark.parametrize(("method", "task"), [("ppo", "gym:Pendulum-v1"), ("dqn", "gym:CartPole-v1")])
def test_runs_keep_values_with_their_episodes(tmp_path: Path, method: str, task: str):
    sizes = dict(updates_per_step=2, minibatch=8) if method == "dqn" else dict(passes=1)
    run = up.train(method, task, steps=1, envs=1, horizon=32, eval_problems=1, out=tmp_path / "run", **sizes)
    (first, *_) = sorted((run.path / "episodes").glob("step-*.json"))
    record = json.loads(first.read_text())
    assert len(record["values"]) == len(record["returns_to_go"]) == record["length"] and record["gamma"] == 0.99
    assert len(set(record["values"])) > 1
