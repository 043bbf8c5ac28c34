"""Rollouts of choices: several at once are one action, and what a mask forbids is never done."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from choice_environments import Dials, Switches, Traps
from rollout_calls import collect

import upslope as up
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.networks import Recurrent
from upslope.rollout.environments import EnvRollout, evaluate_control
from upslope.rollout.recorded_episode import play
from upslope.tasks.env_sources import FromFactory
from upslope.tasks.gym import GymTask
from upslope.types import Ended

torch.set_num_threads(1)


def policy_for(task: GymTask) -> MLPPolicy:
    policy = MLPPolicy.for_task(task, seed=3)
    policy.add_value_head(4)
    return policy


def rollout(task: GymTask, policy, horizon: int) -> EnvRollout:
    return EnvRollout(task, policy, envs=2, horizon=horizon, seed=5, gamma=0.9, normalise_observations=False,
                      normalise_rewards=False)  # fmt: skip


@pytest.mark.parametrize(
    ("env", "options"), [(Dials, {}), (Dials, {"masked": True}), (Switches, {})], ids=["dials", "masked dials", "switches"]
)
def test_several_choices_are_one_action_as_the_environment_takes_it(env, options):
    task = GymTask(FromFactory(env), **options)  # the environment checks what it is given
    assert (task.continuous, task.action_size, task.components) == (False, sum(task.components), task.components)
    policy = policy_for(task)
    rows = collect(rollout(task, policy, horizon=30), 0)
    count = len(task.components)
    assert rows.action.shape == (2, 30, count) and rows.behavior.logp.shape == (2, 30)
    assert all(set(rows.action[..., k].flatten().tolist()) == set(range(task.components[k])) for k in range(count))
    again = policy.evaluate(rows, frozenset({"entropy", "value"}))
    torch.testing.assert_close(again.logp, rows.behavior.logp)
    torch.testing.assert_close(again.entropy, rows.behavior.entropy)
    assert len(evaluate_control(task, policy, None, episodes=3, seed=1, greedy=False)) == 3


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("told", ["info", "method", "observation", "none"])
def test_what_is_masked_is_never_done(told, plain):
    task = GymTask(FromFactory(Traps), told=told)
    policy = policy_for(task)
    policy.plain = plain
    rows = collect(rollout(task, policy, horizon=40), 0)
    played = evaluate_control(task, policy, None, episodes=4, seed=1, greedy=False)
    if told == "none":
        assert (rows.ended == Ended.TERMINATED).any() and rows.inputs.action_mask is None and min(played) < 0
        return
    assert not (rows.ended == Ended.TERMINATED).any() and min(played) >= 0
    mask = rows.inputs.action_mask
    assert mask.shape == (2, 40, 6) and mask.gather(-1, rows.action.unsqueeze(-1)).all()
    again = policy.evaluate(rows, frozenset({"entropy"}))
    torch.testing.assert_close(again.logp, rows.behavior.logp)
    # Nearly uniform at first, among what is allowed; where one choice is left there is nothing to be uncertain of.
    torch.testing.assert_close(again.entropy, mask.sum(-1).log(), atol=0.01, rtol=0)
    (again.logp.sum() + again.entropy.sum()).backward()
    assert policy.flat["policy"].grad.isfinite().all() and policy.flat["policy"].grad.any()
    assert min(play(task, policy, None, 3).rewards) >= 0


BANDIT = dict(envs=4, horizon=64, passes=4, lr=3e-3, knobs={"advantage.gamma": 0.0}, eval_problems=2, seed=1)


@pytest.mark.parametrize("told", ["info", "none"])
def test_ppo_learns_within_the_mask(told, tmp_path):
    run = up.train("ppo", functools.partial(Traps, told=told), steps=8, record="none", **BANDIT, out=tmp_path / "run")
    returns = [record["episode_return"] for record in run.metrics if "episode_return" in record]
    if told == "info":
        assert min(returns) >= 0 and returns[-1] > returns[0] + 1, "a trap costs ten"
    else:
        assert min(returns) < 0


def test_ppo_learns_to_set_all_dials(tmp_path):
    run = up.train("ppo", Dials, steps=12, **BANDIT, out=tmp_path / "run")
    returns = [record["episode_return"] for record in run.metrics if "episode_return" in record]
    by_chance = 10 * (1 / 3 + 1 / 2 + 1 / 4) / 3
    assert returns[0] < by_chance + 1 and returns[-1] > by_chance + 1.5
    episode = json.loads(next((tmp_path / "run" / "episodes").glob("*.json")).read_text())
    assert len(episode["actions"][0]) == 3 and len(episode["actions"]) == episode["length"] == 10


@pytest.mark.parametrize(("env", "options"), [(Traps, {}), (Dials, {"masked": True})], ids=["traps", "dials"])
def test_policies_that_remember_keep_to_masks_too(env, options):
    task = GymTask(FromFactory(env), **options)
    policy = Recurrent(memory=8).build(task, 3)
    policy.add_value_head(4)
    rows = collect(rollout(task, policy, horizon=30), 0)
    assert not (rows.ended == Ended.TERMINATED).any() and rows.inputs.action_mask.shape == (2, 30, task.action_size)
    again = policy.evaluate(rows, frozenset({"entropy"}))
    torch.testing.assert_close(again.logp, rows.behavior.logp)
    torch.testing.assert_close(again.entropy, rows.behavior.entropy)
    (again.logp.sum() + again.entropy.sum()).backward()
    found = [weight.grad for weight in policy.parameters() if weight.grad is not None]
    assert found and all(gradient.isfinite().all() for gradient in found)
    assert len(evaluate_control(task, policy, None, episodes=3, seed=1)) == 3
