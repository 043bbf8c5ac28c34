"""Controllers as files: they do what the policy does, or are not written."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from choice_environments import Dials, Switches, Traps

import upslope as up
from upslope.cli import main
from upslope.errors import MissingExtra, UserError
from upslope.objective.critics import QFunction
from upslope.objective.networks import MLPEnsemble
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.networks import Deterministic, GreedyChoice, Stochastic
from upslope.rollout import export_control
from upslope.rollout.deployed import DeployedPolicy
from upslope.rollout.normalise import ObservationNormaliser
from upslope.tasks.env_sources import FromFactory
from upslope.tasks.gym import GymTask


class Shaped(gymnasium.Env):
    """Every space with all that can be particular about it."""

    def __init__(self, observation: str = "box", action: str = "box"):
        spaces = gymnasium.spaces
        self.observation_space = {"box": spaces.Box(-9, 9, (2, 3), np.float64), "ids": spaces.Discrete(5, start=3)}[observation]
        bounds = np.array([[-0.5], [0.25]]), np.array([[0.5], [0.75]])
        self.action_space = {"box": spaces.Box(*bounds, dtype=np.float64), "ids": spaces.Discrete(4, start=-2)}[action]

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def shaped():
    gymnasium.register("Shaped-v0", entry_point=Shaped, max_episode_steps=40)
    yield
    gymnasium.registry.pop("Shaped-v0")


def controller(observation: str, action: str, activation: str = "tanh", normalise: bool = True) -> DeployedPolicy:
    task = GymTask("Shaped-v0", observation=observation, action=action)
    policy = MLPPolicy.for_task(task, hidden=(16, 8), activation=activation, log_std=-0.5, seed=3)
    policy.add_value_head(1)
    with torch.no_grad():
        policy.flat["policy"].add_(0.2 * torch.randn(len(policy.flat["policy"]), generator=torch.Generator().manual_seed(0)))
    normaliser = ObservationNormaliser(task.observation_size) if normalise else None
    if normaliser is not None:
        normaliser.update(np.random.default_rng(0).normal(1.0, 3.0, (100, task.observation_size)))
    return DeployedPolicy(task, policy, normaliser)


def answers(file: Path, observations: np.ndarray) -> list[np.ndarray]:
    if file.suffix == ".onnx":
        return onnxruntime.InferenceSession(file.read_bytes()).run(None, {"observation": observations})
    return [found.numpy() for found in torch.jit.load(str(file))(torch.from_numpy(observations))]


@pytest.mark.parametrize("suffix", ["onnx", "pt"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("observation", "action", "activation"), [
    ("box", "box", "tanh"), ("box", "ids", "relu"), ("ids", "ids", "silu"), ("ids", "box", "tanh"),
])  # fmt: skip
def test_a_file_does_what_the_policy_does(tmp_path: Path, observation, action, activation, normalise, suffix):
    policy, file = controller(observation, action, activation, normalise), tmp_path / f"policy.{suffix}"
    found = export_control.export_control(policy, file)
    assert found["checked"] == 1000 and found["difference"] < 1e-5 and found["bytes"] == file.stat().st_size
    policy.observation_space.seed(1)
    seen = np.stack([np.asarray(policy.observation_space.sample()) for _ in range(33)])
    seen = seen.astype(np.float32 if observation == "box" else np.int64)
    wanted, _ = policy.predict(seen, deterministic=True)
    acted, parameters, *log_std = answers(file, seen)
    assert acted.dtype == wanted.dtype and acted.shape == wanted.shape
    np.testing.assert_allclose(acted, wanted, atol=1e-5)
    np.testing.assert_allclose(parameters, policy.parameters(seen), rtol=1e-4, atol=1e-5)
    assert len(np.unique(parameters, axis=0)) > 1, "it looks at what it is given"
    assert [len(each) for each in log_std] == ([2] if action == "box" else [])
    assert len(answers(file, seen[:1])[0]) == 1, "any number of observations"


NETWORKS = {
    "sac": (("box", "box"), Stochastic(activation="gelu", layer_norm=True)),
    "iql": (("box", "box"), Stochastic(form="clipped", std="shared")),
    "td3": (("ids", "box"), Deterministic(hidden=(16,))),
    "discrete sac": (("box", "ids"), Stochastic(activation="silu")),
    "dqn": (("box", "ids"), GreedyChoice()),
}


def network_controller(name: str) -> DeployedPolicy:
    (observation, action), network = NETWORKS[name]
    task = GymTask("Shaped-v0", observation=observation, action=action)
    policy = network.build(task, seed=3)
    policy.add_model("q", QFunction(network=MLPEnsemble(members=3, hidden=(16, 8), activation="tanh", layer_norm=True)), 5)
    with torch.no_grad():
        for weights in policy.networks.parameters():
            weights.add_(0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    return DeployedPolicy(task, policy, None)


@pytest.mark.parametrize("suffix", ["onnx", "pt"])
@pytest.mark.parametrize("name", NETWORKS)
def test_policies_of_networks_are_written_too(tmp_path: Path, name: str, suffix: str):
    policy, file = network_controller(name), tmp_path / f"policy.{suffix}"
    assert export_control.export_control(policy, file)["difference"] < 1e-5
    seen = np.random.default_rng(1).normal(0, 3, (33, 2, 3)).astype(np.float32)
    if name == "td3":
        seen = np.random.default_rng(1).integers(3, 8, 33)
    wanted, _ = policy.predict(seen, deterministic=True)
    acted, parameters, *log_std = answers(file, seen)
    assert acted.dtype == wanted.dtype and acted.shape == wanted.shape
    np.testing.assert_allclose(acted, wanted, atol=1e-5)
    np.testing.assert_allclose(parameters, policy.parameters(seen), rtol=1e-4, atol=1e-5)
    assert len(np.unique(acted, axis=0)) > 1, "it looks at what it is given"
    assert [each.shape for each in log_std] == {"sac": [(33, 2)], "iql": [(2,)]}.get(name, [])


def test_a_policy_that_asks_a_model_first_is_refused(tmp_path: Path):
    policy = network_controller("sac")
    policy.policy.chosen_by = "balance"
    with pytest.raises(UserError, match=r"asks the model 'balance' for a coefficient.*predict answers"):
        export_control.export_control(policy, tmp_path / "policy.onnx")


@pytest.mark.parametrize(("method", "task"), [("sac", "gym:Pendulum-v1"), ("dqn", "gym:CartPole-v1")])
def test_runs_that_learn_from_stored_experience_are_exported(tmp_path: Path, method: str, task: str):
    small = dict(steps=1, horizon=150, updates_per_step=10, minibatch=16, eval_problems=2, record="none")
    knobs = {"policy.hidden": (16, 16), "models.q.network.hidden": (16, 16)} if method == "sac" else {}
    run = up.train(method, task, **small, knobs=knobs, out=tmp_path / "run")
    assert up.load(run.path).export(tmp_path / "policy.onnx")["checked"] == 1000
    assert up.load(run.path).export(tmp_path / "policy.pt")["checked_by"] == "torch.jit"


@pytest.mark.parametrize("suffix", ["onnx", "pt"])
@pytest.mark.parametrize("wrong", ["mean", "weights", "start"])
def test_a_file_that_would_do_something_else_is_not_written(tmp_path: Path, monkeypatch, wrong: str, suffix: str):
    policy = controller("box", "ids")
    made = {".onnx": export_control._onnx, ".pt": export_control._torchscript}[f".{suffix}"](policy)
    monkeypatch.setattr(export_control, "_onnx", lambda _: made)
    monkeypatch.setattr(export_control, "_torchscript", lambda _: made)
    if wrong == "mean":
        policy.observations.moments.mean += 0.5
    elif wrong == "weights":
        policy._actor._weights[0][0][0, 0] += 0.1
    else:
        policy.action_space = gymnasium.spaces.Discrete(4, start=-1)
    with pytest.raises(UserError, match=r"was not written.*1,000 observations"):
        export_control.export_control(policy, tmp_path / f"policy.{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_without_onnxruntime_the_reference_checks(tmp_path: Path, monkeypatch):
    _without(monkeypatch, "onnxruntime")
    found = export_control.export_control(controller("box", "box"), tmp_path / "policy.onnx")
    assert found["checked_by"] == "onnx.reference"
    onnx.checker.check_model(str(tmp_path / "policy.onnx"))


def test_without_onnx_it_says_what_to_install(tmp_path: Path, monkeypatch):
    policy = controller("box", "box")
    _without(monkeypatch, "onnx")
    with pytest.raises(MissingExtra, match=r"\[export\]"):
        export_control.export_control(policy, tmp_path / "policy.onnx")
    export_control.export_control(policy, tmp_path / "policy.pt")


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    usual = builtins.__import__

    def importing(name, *more, **words):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return usual(name, *more, **words)

    monkeypatch.setattr(builtins, "__import__", importing)


@pytest.mark.parametrize(
    ("name", "said"), [("policy.onx", "Did you mean '.onnx'"), ("policy", "policy.onnx or policy.pt"), (".", "policy.onnx or")]
)
def test_other_files_are_refused(tmp_path: Path, name: str, said: str):
    with pytest.raises(UserError) as found:
        export_control.export_control(controller("box", "box"), tmp_path / name)
    assert said in str(found.value)


def test_the_command_prints_the_check(tmp_path: Path, capsys):
    small = dict(steps=2, envs=2, horizon=32, eval_problems=2, record="none")
    run = up.train("ppo", "gym:Pendulum-v1", **small, out=tmp_path / "run")
    assert main(["export", str(run.path), "--to", str(tmp_path / "here" / "policy.onnx")]) == 0
    said = capsys.readouterr().out
    assert "on 1,000 observations: the same actions" in said and "onnxruntime" in said
    assert up.load(run.path).export(tmp_path / "policy.pt")["checked_by"] == "torch.jit"
    assert main(["export", str(run.path), "--to", str(tmp_path / "policy.txt")]) != 0


@pytest.mark.parametrize("suffix", ["onnx", "pt"])
@pytest.mark.parametrize(
    ("env", "options"),
    [(Dials, {}), (Dials, {"masked": True}), (Switches, {}), (Traps, {})],
    ids=["dials", "masked dials", "switches", "traps"],
)
def test_several_choices_and_masked_ones_are_written_too(tmp_path: Path, env: Any, options: dict, suffix: str):
    task = GymTask(FromFactory(env), **options)
    network = MLPPolicy.for_task(task, seed=3)
    network.actor[-1].weight.mul_(100)
    policy, file = DeployedPolicy(task, network, None), tmp_path / f"policy.{suffix}"
    assert export_control.export_control(policy, file)["difference"] < 1e-5
    seen = np.random.default_rng(1).normal(0, 3, (33, task.observation_size)).astype(np.float32)
    acted, parameters = answers(file, seen)
    wanted, _ = policy.predict(seen, deterministic=True)
    assert acted.shape == wanted.shape and (acted == wanted).all() and parameters.shape == (33, task.action_size)
