"""Policies of torch modules: as those of numpy where both can be, and from images as Stable-Baselines3's."""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch
from picture_environment import Sides

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.methods.control.presets import preset_for
from upslope.objective.networks.encoders import NatureCNN, SmallCNN
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.networks import MLP
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.environments import EnvRollout
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.gym import GymTask
from upslope.testing.runs import Breaks, Crash, assert_same_run
from upslope.types import Ended

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def sides():
    gymnasium.register("Sides-v0", entry_point=Sides)
    yield
    gymnasium.registry.pop("Sides-v0")


def both(env: str) -> tuple[GymTask, MLPPolicy, TorchPolicy]:
    task = GymTask(env)
    numpy_policy = MLPPolicy.for_task(task, seed=3, log_std=-0.5)
    torch_policy = TorchPolicy(task.observation_shape, task.action_size, task.continuous, seed=3, log_std=-0.5)
    for policy in (numpy_policy, torch_policy):
        policy.add_value_head(4)
    return task, numpy_policy, torch_policy


def in_torch_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An `MLPPolicy`'s weights as a `TorchPolicy` names them."""
    found = {}
    for name, weight in weights.items():
        part, _, rest = name.partition(".")
        layer, _, kind = rest.partition(".")
        found[f"stacks.{'policy' if part == 'actor' else 'value'}.{2 * int(layer)}.{kind}" if rest else name] = weight
    return found


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_without_encoder_and_memory_it_is_the_policy_in_numpy(env: str):
    task, numpy_policy, torch_policy = both(env)
    first = {name: weight.clone() for name, weight in in_torch_names(numpy_policy.weights()).items()}
    assert first.keys() == torch_policy.weights().keys()
    assert all(torch.equal(first[name], weight) for name, weight in torch_policy.weights().items()), "from the same seed"
    assert torch_policy.parameter_count() == numpy_policy.parameter_count() and torch_policy.independent_decisions
    settings = Settings(steps=2, horizon=64, envs=2, passes=2, minibatch=48).resolved("control", "mlp", continuous=task.continuous)
    made = []
    for policy in (numpy_policy, torch_policy):
        rollout = EnvRollout(task, policy, envs=2, horizon=64, seed=5, gamma=0.99, normalise_observations=task.continuous,
                             normalise_rewards=task.continuous)  # fmt: skip
        learner = PolicyGradient(find("ppo"), policy, rollout, settings)
        made.append([learner.step(1), learner.last])
        rollout.close()
    (numpy_metrics, numpy_rows), (torch_metrics, torch_rows) = made
    assert torch.equal(numpy_rows.action, torch_rows.action) or task.continuous
    for name in ("logp", "entropy", "value"):
        torch.testing.assert_close(torch_rows.behavior[name], numpy_rows.behavior[name], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch_rows.advantage, numpy_rows.advantage, rtol=1e-4, atol=1e-4)
    assert torch_metrics["grad_norm"] == pytest.approx(numpy_metrics["grad_norm"], rel=1e-4)
    second = in_torch_names(numpy_policy.weights())
    for name, weight in torch_policy.weights().items():
        assert not torch.equal(weight, first[name])
        torch.testing.assert_close(weight, second[name], rtol=1e-4, atol=2e-5, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size", "ignore:.*", category=UserWarning)
@pytest.mark.checks("oracle", "ppo", by="whole steps from images equal those of Stable-Baselines3")
@pytest.mark.oracle("stable-baselines3")
def test_whole_steps_from_images_equal_those_of_stable_baselines(monkeypatch: pytest.MonkeyPatch):
    from beside_stable_baselines import our_steps, their_steps

    zoo = preset_for("rl-zoo", "gym:CartPole-v1")
    preset = dataclasses.replace(zoo, n_envs=2, n_steps=20, batch_size=16, n_epochs=2, ent_coef=0.01, vf_coef=0.5,
                                 learning_rate=3e-4, max_grad_norm=0.05, linear_lr=False, linear_clip=False)  # fmt: skip
    first, own, rows = our_steps(preset, "Sides-v0", monkeypatch)
    assert rows[0].inputs.observation.dtype == torch.uint8
    assert (rows[0].ended == Ended.TRUNCATED).any() and (rows[0].ended[:, :-1] == Ended.TERMINATED).any()
    net_arch = {"pi": [64, 64], "vf": [64, 64]}
    theirs = their_steps(preset, "Sides-v0", first, rows, monkeypatch, policy="CnnPolicy", policy_kwargs={"net_arch": net_arch})
    for found, wanted in zip(own, theirs, strict=True):
        for name, column in wanted.columns.items():
            torch.testing.assert_close(
                found.columns[name], column, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
            )
        assert found.norms == pytest.approx(wanted.norms, rel=1e-4) and max(found.norms) > preset.max_grad_norm
        for name, weight in wanted.weights.items():
            torch.testing.assert_close(
                found.weights[name], weight, rtol=0, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
            )
    moved = own[-1].weights["encoder.module.convolutions.0.weight"] - first["encoder.module.convolutions.0.weight"]
    assert moved.abs().max() > 1e-3


def components(task: str = "gym:Sides-v0", method="ppo", knobs: dict | None = None, **settings):
    quick = dict(steps=1, envs=2, horizon=8, eval_problems=2, record="none", threads=1)
    chosen = find(method) if isinstance(method, str) else method
    return set_up(chosen, task, "tiny", Settings(**quick | settings), knobs=knobs or {})


def test_images_get_an_encoder_that_fits_and_another_where_it_is_asked_for():
    made = components()
    assert isinstance(made.policy, TorchPolicy) and made.policy.encoder.features == 512 and not made.settings.normalise_observations
    assert made.method.policy == MLP(), "which one is found where it is built"
    small = components("gym:Sides-v0:side=9")
    assert len(small.policy.encoder.module.convolutions) == 2
    asked = components(knobs={"policy.encoder": "NatureCNN(features=16)"})
    assert asked.policy.encoder.features == 16 and asked.method.policy == MLP(encoder=NatureCNN(16))
    assert asked.policy.stacks["policy"][0].weight.shape == (64, 16)
    again = components(knobs={"policy.encoder": "SmallCNN", "policy.encoder.channels": "4"})
    assert again.method.policy == MLP(encoder=SmallCNN(channels=4))


def test_its_first_weights_are_orthogonal_with_the_usual_gains():
    before = torch.random.get_rng_state()
    policy = components().policy
    assert torch.equal(before, torch.random.get_rng_state())
    gains = {name: 0.01 if name == "stacks.policy.4" else 1.0 if name == "stacks.value.4" else math.sqrt(2)
             for name in (key.rpartition(".")[0] for key in policy.weights())}  # fmt: skip
    for name, gain in gains.items():
        weight, bias = policy.weights()[f"{name}.weight"], policy.weights()[f"{name}.bias"]
        singular = torch.linalg.svdvals(weight.flatten(1))
        torch.testing.assert_close(singular, torch.full_like(singular, gain), atol=1e-4, rtol=1e-4)
        assert not bias.any()


def test_what_cannot_be_is_refused():
    with pytest.raises(MethodError, match="for images, and observations here are vectors of 4"):
        components("gym:CartPole-v1", knobs={"policy.encoder": "NatureCNN"})
    with pytest.raises(UserError, match="normalise_observations=true: gym:Sides-v0 shows images"):
        components(normalise_observations=True)
    with pytest.raises(MethodError, match="add_value_head"):
        TorchPolicy((3,), 2, False).value(torch.zeros(1, 3))
    with pytest.raises(UserError, match="only networks of layers alone"):
        components().policy.greedy_network()


def test_a_saved_policy_is_loaded_and_another_is_refused(tmp_path):
    made, other = components(seed=1).policy, components(seed=2).policy
    made.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]
    other.load(tmp_path)
    assert all(torch.equal(weight, other.weights()[name]) for name, weight in made.weights().items())
    with pytest.raises(UserError, match="another network"):
        components(knobs={"policy.encoder": "NatureCNN(features=16)"}).policy.load(tmp_path)
    with pytest.raises(UserError, match="another kind"):
        MLPPolicy(4, 2, False).save(tmp_path / "mlp")
        other.load(tmp_path / "mlp")


def test_an_actor_keeps_its_weights_and_a_frozen_copy_does_not_learn():
    policy = TorchPolicy((2,), 3, True)
    policy.add_value_head(0)
    actor, copied, seen = policy.acting(), policy.frozen_copy(), np.ones((1, 2), np.float32)
    before = actor.output(seen)
    policy.stacks["policy"][0].weight.data.zero_()
    assert np.array_equal(actor.output(seen), before) and not np.array_equal(policy.acting().output(seen), before)
    assert not any(weight.requires_grad for weight in copied.parameters())
    assert {name: len(group) for name, group in policy.trainable().items()} == {"policy": 7, "value": 6}


QUICK = dict(envs=4, horizon=32, passes=4, threads=1, lr=1e-3, record="none")


@pytest.mark.slow
def test_ppo_learns_from_images_and_the_run_is_used(tmp_path):
    run = up.train("ppo", "gym:Sides-v0:side=9,max_episode_steps=6", out=tmp_path / "run", steps=8, eval_problems=20, **QUICK)
    assert run.summary["score_after"] > run.summary["score_before"] + 1
    env = gymnasium.make("Sides-v0", side=9)
    seen = np.stack([env.reset(seed=seed)[0] for seed in range(12)])
    bright = seen.reshape(12, 9, 3, 3).mean((1, 3)).argmax(-1)
    loaded = up.load(run.path)
    assert (loaded.predict(seen, deterministic=True)[0] == bright).mean() > 0.9
    assert loaded.predict(seen[0], deterministic=True)[0].shape == ()


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path):
    given = dict(QUICK, steps=3, horizon=8, passes=1, eval_problems=2, checkpoint_every=2, record="some")
    task = "gym:Sides-v0:side=9,max_episode_steps=6"
    whole = up.train("ppo", task, out=tmp_path / "whole", **given)
    with pytest.raises(Crash):
        up.train("ppo", task, out=tmp_path / "cut", watcher=Breaks(3), **given)
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")
