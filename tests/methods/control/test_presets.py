"""Presets: settings of rl-baselines3-zoo as ours, held against what Stable-Baselines3 would do with them."""

from __future__ import annotations

import pytest

import upslope as up
from upslope.errors import UserError
from upslope.methods import find
from upslope.methods.control.presets import ZOO, choose, preset_for
from upslope.policies.control.networks import MLP, in_domains
from upslope.runtime.settings import Settings


@pytest.mark.parametrize("name", ZOO)
def test_a_preset_is_whole(name: str):
    chosen = choose("rl-zoo", find("ppo"), f"gym:{name}-v1", {}, {})
    settings = Settings(**chosen.settings)
    method = in_domains(find("ppo"), "control").with_knobs(chosen.knobs)
    assert isinstance(method.policy, MLP) and name in chosen.told
    budget = settings.steps * settings.envs * settings.horizon
    assert ZOO[name].n_timesteps <= budget < ZOO[name].n_timesteps + settings.envs * settings.horizon
    assert settings.lr_floor == 0 and settings.warmup == 0 and settings.checkpoint_every * 10 >= settings.steps


def test_figures_worked_out_by_hand():
    chosen = choose("rl-zoo", find("ppo"), "gym:CartPole-v1", {}, {})
    assert (
        chosen.settings | dict(steps=391, envs=8, horizon=32, minibatch=256, passes=20, lr=1e-3, schedule="linear")
        == chosen.settings
    )
    method = in_domains(find("ppo"), "control").with_knobs(chosen.knobs)
    assert (method.advantage.gamma, method.advantage.lam, method.regularize[0].weight) == (0.98, 0.8, 0.0)
    assert dict(method.models)["value"].weight == 1.0  # SB3: 0.5 times the squared error; ours: weight times half of it
    (clip,) = method.controller
    assert clip.knobs({}, 0.0) == {"surrogate.low": 0.2, "surrogate.high": 0.2}
    assert clip.knobs({}, 0.75) == pytest.approx({"surrogate.low": 0.05, "surrogate.high": 0.05})
    cheetah = choose("rl-zoo", find("ppo"), "gym:HalfCheetah-v5", {}, {})
    assert cheetah.settings["normalise_observations"] and cheetah.settings["grad_clip"] == 0.8 and cheetah.settings["steps"] == 1954
    assert in_domains(find("ppo"), "control").with_knobs(cheetah.knobs).policy == MLP((256, 256), "relu", -2.0)


def test_what_is_given_wins():
    given = {"advantage.gamma": 0.5, "surrogate": "PessimisticClip(low=0.3, high=0.3)", "policy.hidden": "8"}
    chosen = choose("rl-zoo", find("ppo"), "gym:CartPole-v1", {"lr": 1e-5, "steps": 3}, given)
    assert chosen.settings["lr"] == 1e-5 and chosen.settings["steps"] == 3 and chosen.settings["envs"] == 8
    method = in_domains(find("ppo"), "control").with_knobs(chosen.knobs)
    assert method.advantage.gamma == 0.5 and method.surrogate.high == 0.3 and method.policy.hidden == (8,)
    assert not method.controller, "its schedule would move the clip that was given"
    assert "--lr" in chosen.told and "advantage.gamma" in chosen.told


@pytest.mark.parametrize(
    ("preset", "method", "task", "said"),
    [
        ("rl-zo", "ppo", "gym:CartPole-v1", "Did you mean 'rl-zoo'"),
        ("rl-zoo", "ppo", "gym:Blackjack-v1", "Ant, Swimmer"),
        ("rl-zoo", "ppo", "gym:Cartpole-v1", "Did you mean 'CartPole'"),
        ("rl-zoo", "ppo", "reverse", "has no settings for 'reverse'"),
        ("rl-zoo", "bpo", "gym:CartPole-v1", "settings of ppo; bpo has other parts"),
    ],
)
def test_what_there_is_no_preset_for_is_refused(preset: str, method: str, task: str, said: str):
    with pytest.raises(UserError) as found:
        up.train(method, task, preset=preset)
    assert said in str(found.value)


def test_a_version_and_options_do_not_matter():
    assert preset_for("rl-zoo", "gym:Hopper-v4") is preset_for("rl-zoo", "gym:Hopper-v5:frame_skip=4") is ZOO["Hopper"]


def test_a_run_says_what_it_took(tmp_path):
    with pytest.warns(UserWarning, match=r"preset rl-zoo for gym:CartPole-v1: n_timesteps 100000, n_envs 8, n_steps 32"):
        run = up.train("ppo", "gym:CartPole-v1", preset="rl-zoo", steps=2, eval_problems=2, out=tmp_path / "run")
    assert run.plan.settings.horizon == 32 and run.plan.settings.steps == 2
    assert run.plan.method.controller and run.metrics[-1]["env_steps"] == 512
