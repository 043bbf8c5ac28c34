"""A trained controller in use: the run's own normalisation and clipping, by Stable-Baselines3's protocol."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from choice_environments import Dials, Traps
from fake_runs import fake_run

import upslope as up
from upslope.errors import UserError
from upslope.policies.control.mlp import MLPPolicy
from upslope.rollout.deployed import DeployedPolicy
from upslope.rollout.environments import EnvRollout, evaluate_control
from upslope.tasks.env_sources import FromFactory
from upslope.tasks.gym import GymTask

SMALL = dict(envs=4, horizon=64, eval_problems=2, record="none", threads=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {"CartPole-v1": dict(steps=12, passes=4), "Pendulum-v1": dict(steps=3, passes=2), "FrozenLake-v1": dict(steps=2)}
    return {name: up.train("ppo", f"gym:{name}", **SMALL, **given, out=folder / name).path for name, given in made.items()}


def test_it_acts_as_in_the_evaluation(runs: dict[str, Path]):
    run = up.load(runs["Pendulum-v1"])
    wanted = evaluate_control(run.controller.task, run.policy, run.components.rollout.state(), episodes=1, seed=5, envs=1)
    from upslope.rollout.environments import _episode_seed

    env, total = gymnasium.make("Pendulum-v1"), 0.0
    observation, _ = env.reset(seed=_episode_seed(5, 0))
    for _ in range(200):
        action, state = run.predict(observation, deterministic=True)
        assert action.shape == (1,) and action.dtype == np.float32 and state is None
        observation, reward, *_ = env.step(action)
        total += float(reward)
    assert total == pytest.approx(wanted[0], rel=1e-6)
    assert run.components.rollout.observations is not None, "Pendulum's observations are normalised"


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_one_and_several(runs: dict[str, Path], name: str):
    run = up.load(runs[name])
    space, actions = run.controller.observation_space, run.controller.action_space
    space.seed(0)
    batch = np.stack([np.asarray(space.sample()) for _ in range(7)])
    several, state = run.predict(batch, state="kept", deterministic=True)
    assert several.shape == (7, *actions.shape) and state == "kept"
    for one, wanted in zip(batch, several, strict=True):
        found, _ = run.predict(one, deterministic=True)
        # To rounding: some processors multiply a single row in another order than several.
        assert isinstance(found, np.ndarray) and np.allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert actions.contains(found if found.shape else found[()])
    drawn = np.stack([run.predict(batch)[0] for _ in range(50)])
    assert len(np.unique(drawn.reshape(50, -1), axis=0)) > 1, "without deterministic=True actions are drawn"
    assert (up.load(runs[name]).predict(batch)[0] == drawn[0]).all(), "from the run's seed"


@pytest.mark.parametrize("vectorised", [False, True])
def test_stable_baselines_evaluates_it_as_it_is(runs: dict[str, Path], vectorised: bool):
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    run = up.load(runs["CartPole-v1"])
    env = make_vec_env("CartPole-v1", 3, seed=0) if vectorised else gymnasium.make("CartPole-v1")
    returns, lengths = evaluate_policy(run, env, n_eval_episodes=6, return_episode_rewards=True, warn=False)
    assert len(returns) == 6 and returns == lengths
    own = evaluate_control(run.controller.task, run.policy, run.components.rollout.state(), episodes=30, seed=1)
    assert min(own) * 0.5 <= np.mean(returns) <= max(own) * 2


def test_actions_of_a_box_and_of_a_discrete_space_are_the_environments():
    class Odd(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float64)
        action_space = gymnasium.spaces.Box(np.array([[0.1, -0.2]]), np.array([[0.2, -0.1]]), dtype=np.float64)

        def reset(self, *, seed=None, options=None):
            return np.zeros((2, 2)), {}

        def step(self, action):
            return np.zeros((2, 2)), 0.0, True, False, {}

    gymnasium.register("Odd-v0", entry_point=Odd)
    try:
        task = GymTask("Odd-v0")
    finally:
        gymnasium.registry.pop("Odd-v0")
    deployed = DeployedPolicy(task, MLPPolicy.for_task(task), None)
    action, _ = deployed.predict(np.ones((2, 2)))
    assert action.shape == (1, 2) and action.dtype == np.float64 and task.action_space.contains(action)
    assert deployed.predict(np.ones((5, 2, 2)))[0].shape == (5, 1, 2)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("CartPole-v1", np.zeros(3), r"shape \(4,\), and \(3,\) was given"),
        ("CartPole-v1", np.zeros((2, 2, 4)), r"or several as \(N, 4\)"),
        ("CartPole-v1", np.full(4, np.nan), "not finite"),
        ("CartPole-v1", {"a": 1}, "dict is no observation"),
        ("CartPole-v1", ["a", "b", "c", "d"], "list is no observation"),
        ("FrozenLake-v1", 16, r"16 is not in Discrete\(16\)"),
        ("FrozenLake-v1", 0.5, "0.5 is not in"),
    ],
)
def test_what_is_no_observation_is_refused(runs: dict[str, Path], name: str, given: object, said: str):
    with pytest.raises(UserError, match=said):
        up.load(runs[name]).predict(given)


def test_text_says_what_answers(tmp_path: Path):
    run = up.load(fake_run(tmp_path, "grpo", 0, 0.5))
    with pytest.raises(UserError, match="upslope serve"):
        run.predict([1.0])
    with pytest.raises(UserError, match=r"policy\.onnx is for networks of environments; reverse is answered in text"):
        run.export(tmp_path / "policy.onnx")


def test_loading_for_use_starts_no_processes(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    made = []
    monkeypatch.setattr(EnvRollout, "__init__", _noting(made, EnvRollout.__init__))
    up.load(runs["CartPole-v1"]).predict(np.zeros(4))
    assert [(given["envs"], given["workers"]) for given in made] == [(1, 1)]


def _noting(made, original):
    def init(self, *args, **given):
        made.append(given)
        original(self, *args, **given)

    return init


def test_several_choices_at_once_and_masks(tmp_path: Path):
    run = up.train("ppo", Dials, **SMALL, steps=2, out=tmp_path / "dials")
    policy, seen = run.controller, np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    action, _ = run.predict(seen[0], deterministic=True)
    assert action.shape == (3,) and action.dtype == np.int32 and policy.task.action_space.contains(action)
    mask = np.array([0, 1, 0, 1, 1, 1, 0, 0, 1])
    drawn, _ = run.predict(seen, action_masks=np.tile(mask, (50, 1)))
    assert drawn.shape == (50, 3) and set(drawn[:, 0]) == {2} and set(drawn[:, 1]) == {0, 1} and set(drawn[:, 2]) == {-1, 2}
    alone, _ = run.predict(seen[0], deterministic=True, action_masks=mask)
    assert alone[0] == 2 and alone[2] in (-1, 2)
    for wrong, told in (([1, 0], "2 entries"), (0 * mask, "allows no action"), (mask - 1, "not of 0 and 1")):
        with pytest.raises(UserError, match=f"{told}.*give 9 entries for each observation"):
            run.predict(seen[0], action_masks=wrong)


def test_a_mask_in_the_observation_is_kept_to():
    task = GymTask(FromFactory(Traps), told="observation")
    policy = DeployedPolicy(task, MLPPolicy.for_task(task, seed=1), None)
    seen = {"observation": np.zeros((6, 6), np.float32), "action_mask": np.eye(6, dtype=np.int8)}
    assert policy.predict(seen)[0].tolist() == list(range(6))
    assert int(policy.predict({key: value[2] for key, value in seen.items()})[0]) == 2
    assert policy.predict(seen, action_masks=np.eye(6)[::-1])[0].tolist() == [5, 4, 3, 2, 1, 0]


def test_vectors_have_no_masks(runs: dict[str, Path]):
    with pytest.raises(UserError, match=r"action_masks forbid choices.*are vectors"):
        up.load(runs["Pendulum-v1"]).predict(np.zeros(3), action_masks=[1])
