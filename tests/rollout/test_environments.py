"""Rollouts of environments: honest ends, repeatable, scaled by what was seen, and evaluation."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from rollout_calls import collect

from upslope.errors import MethodError, TaskError, UserError
from upslope.policies.control.mlp import MLPPolicy
from upslope.rollout.deployed import DeployedPolicy
from upslope.rollout.environments import EnvRollout, _episode_seed, evaluate_control
from upslope.tasks.gym import GymTask
from upslope.types import Ended

torch.set_num_threads(1)


class Clock(gymnasium.Env):
    """Observes how long the episode has run (resets to -1, which no step shows) and pays ten plus that.

    It ends of itself after ``ends_after`` steps. It remembers the actions that arrived.
    """

    def __init__(self, ends_after: int = 10**9, observation=None, action=None, length_by_seed: bool = False):
        self.observation_space = observation or gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action or gymnasium.spaces.Discrete(2)
        self.ends_after, self.length_by_seed = ends_after, length_by_seed
        self.taken: list = []

    def _look(self):
        if isinstance(self.observation_space, gymnasium.spaces.Discrete):
            return self.observation_space.start + max(self.time, 0) % self.observation_space.n
        return np.array([self.time, self.drawn])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.drawn = -1, float(self.np_random.random())
        if self.length_by_seed:
            self.ends_after = int(self.np_random.integers(1, 30))
        return self._look(), {}

    def step(self, action):
        self.taken.append(action)
        self.time = max(self.time, 0) + 1
        return self._look(), 10.0 + self.time, self.time >= self.ends_after, False, {}


@pytest.fixture(scope="module", autouse=True)
def clock():
    gymnasium.register("Clock-v0", entry_point=Clock)
    yield
    gymnasium.registry.pop("Clock-v0")


def box(low, high, shape=(2,)):
    return gymnasium.spaces.Box(low, high, shape, np.float32)


def clock_task(**options) -> GymTask:
    return GymTask("Clock-v0", disable_env_checker=True, **options)


def policy_for(task: GymTask, value: bool = True, **knobs) -> MLPPolicy:
    policy = MLPPolicy.for_task(task, seed=3, **knobs)
    if value:
        policy.add_value_head(4)
    return policy


def rollout(task: GymTask, policy: MLPPolicy, *, observations=False, rewards=False, envs=2, horizon=8, seed=5) -> EnvRollout:
    return EnvRollout(task, policy, envs=envs, horizon=horizon, seed=seed, gamma=0.9,
                      normalise_observations=observations, normalise_rewards=rewards)  # fmt: skip


def columns(rows):
    return {"observation": rows.inputs.observation, "action": rows.action, "reward": rows.step_reward, "ended": rows.ended,
            "bootstrap": rows.bootstrap, "logp": rows.behavior.logp, "value": rows.behavior.value}  # fmt: skip


def assert_same(one, other):
    for name, column in columns(one).items():
        assert torch.equal(column, columns(other)[name]), name


# -- ends ----------------------------------------------------------------------------------------------------------------


def test_a_truncation_bootstraps_from_the_final_observation_and_a_pause_from_the_next():
    task = clock_task(max_episode_steps=3)
    policy = policy_for(task)
    rows = collect(rollout(task, policy), 0)

    assert rows.ended.tolist() == [[0, 0, Ended.TRUNCATED, 0, 0, Ended.TRUNCATED, 0, Ended.PAUSED]] * 2
    assert rows.step_reward.tolist() == [[11, 12, 13, 11, 12, 13, 11, 12]] * 2
    seen = rows.inputs.observation
    assert seen[:, :, 0].tolist() == [[-1, 1, 2, -1, 1, 2, -1, 1]] * 2  # -1 is the reset; the 3 is never acted on
    drawn = seen[:, :, 1]

    def value(time, position):
        return policy.value(torch.stack([torch.full((2,), time), drawn[:, position]], -1)).detach()

    expected = torch.zeros(2, 8)
    expected[:, 2], expected[:, 5], expected[:, 7] = value(3.0, 2), value(3.0, 5), value(2.0, 7)
    torch.testing.assert_close(rows.bootstrap, expected)
    assert (value(3.0, 2) - value(-1.0, 3)).abs().min() > 1e-3  # or the test could not tell the two apart


def test_a_termination_has_nothing_behind_it_even_when_the_limit_strikes_too():
    task = clock_task(ends_after=4, max_episode_steps=4)
    rows = collect(rollout(task, policy_for(task)), 0)
    assert rows.ended.tolist() == [[0, 0, 0, Ended.TERMINATED, 0, 0, 0, Ended.TERMINATED]] * 2
    assert not rows.bootstrap.any()


def test_a_truncation_in_the_last_column_is_not_a_pause():
    task = clock_task(max_episode_steps=8)
    policy = policy_for(task)
    rows = collect(rollout(task, policy), 0)
    assert rows.ended[:, -1].tolist() == [Ended.TRUNCATED] * 2
    final = torch.stack([torch.full((2,), 8.0), rows.inputs.observation[:, -1, 1]], -1)
    torch.testing.assert_close(rows.bootstrap[:, -1], policy.value(final).detach())


def test_without_a_critic_there_is_no_value_and_nothing_to_bootstrap():
    task = clock_task(max_episode_steps=3)
    policy = policy_for(task, value=False)
    rows = collect(rollout(task, policy), 0)
    assert rows.behavior.value is None and not rows.bootstrap.any() and (rows.ended == Ended.TRUNCATED).any()
    with pytest.raises(MethodError, match="add_value_head"):
        policy.value(torch.zeros(1, 2))


def test_finished_episodes_are_told_once_with_raw_returns_across_rollouts():
    task = clock_task(max_episode_steps=3)
    sampler = rollout(task, policy_for(task), rewards=True, horizon=4, envs=1)
    collect(sampler, 0)
    assert sampler.finished() == [(36.0, 3)]
    collect(sampler, 1)  # the second episode began in the first rollout
    assert sampler.finished() == [(36.0, 3)] and sampler.finished() == [] and sampler.env_steps == 8


# -- determinism and state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_seed_gives_the_same_rollouts_and_a_restart_forgets_what_ran_before(env):
    task = GymTask(env)
    one, other = (rollout(task, policy_for(task), horizon=40) for _ in range(2))
    assert_same(collect(one, 0), collect(other, 0))
    collect(one, 1), collect(one, 2)
    one.restart(3), other.restart(3)
    assert_same(collect(one, 3), collect(other, 3))
    different = collect(rollout(task, policy_for(task), horizon=40, seed=6), 3)
    other.restart(3)
    assert not torch.equal(collect(other, 3).inputs.observation, different.inputs.observation)


def test_a_loaded_state_goes_on_exactly_where_it_was_saved():
    task = GymTask("Pendulum-v1")
    one, other = (rollout(task, policy_for(task), observations=True, rewards=True, horizon=30) for _ in range(2))
    collect(one, 0)
    other.load_state(one.state())
    one.restart(1), other.restart(1)
    assert_same(collect(one, 1), collect(other, 1))
    assert other.env_steps == 120 and len(other.state()) == 7
    saved = other.state()
    assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(saved[key])) for key, value in one.state().items())
    with pytest.raises(UserError, match="other settings"):
        other.load_state({"env_steps": 1})


def test_a_rollout_leaves_the_global_generators_alone():
    before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    task = GymTask("CartPole-v1")
    collect(rollout(task, policy_for(task)), 0)
    assert torch.equal(before, torch.random.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])


# -- the policy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "activation"), [("CartPole-v1", "tanh"), ("Pendulum-v1", "silu"), ("CartPole-v1", "relu")])
def test_evaluate_finds_again_what_was_recorded_while_acting(env, activation):
    task = GymTask(env)
    policy = policy_for(task, activation=activation, hidden=(32, 16, 8))
    if policy.log_std is not None:
        policy.log_std.data.fill_(-0.7)
    for layer in (policy.actor[-1], policy.critic[-1]):
        layer.weight.data.mul_(30)  # away from uniform, where all would be equal
    rows = collect(rollout(task, policy, horizon=50, observations=True), 0)
    view = policy.evaluate(rows, frozenset({"entropy", "value"}))
    for name, column in view.columns().items():
        torch.testing.assert_close(column.detach(), getattr(rows.behavior, name), atol=1e-5, rtol=1e-5)
    assert view.logp.requires_grad and view.value.requires_grad and not rows.behavior.logp.requires_grad
    assert rows.behavior.logp.std() > 0.01
    decisions = rows.take_decisions(torch.tensor([7, 51]))
    torch.testing.assert_close(policy.evaluate(decisions).logp.flatten(), view.logp.flatten()[[7, 51]], atol=1e-6, rtol=1e-5)
    assert policy.slice_tokens(decisions).tolist() == [1, 1]


# -- statistics ----------------------------------------------------------------------------------------------------------


def test_the_policy_sees_observations_scaled_by_all_it_has_acted_on():
    task = GymTask("Pendulum-v1")
    raw = collect(rollout(task, policy_for(task), horizon=20), 0)
    sampler = rollout(task, policy_for(task), horizon=20, observations=True)
    seen = collect(sampler, 0).inputs.observation
    first = raw.inputs.observation[:, 0].double().numpy()
    np.testing.assert_allclose(seen[:, 0], (first - first.mean(0)) / np.sqrt(first.var(0) + 1e-8), atol=1e-4)
    assert sampler.observations.moments.count == 40


# -- evaluation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation_plays_the_same_episodes_however_many_environments_share_them(greedy):
    task = clock_task(length_by_seed=True)
    told: list[int] = []
    returns = evaluate_control(task, policy_for(task), None, episodes=7, seed=1, envs=3, greedy=greedy, progress=told.append)
    assert len(returns) == 7 and told == list(range(1, 8))
    assert returns == evaluate_control(task, policy_for(task), None, episodes=7, seed=1, envs=1, greedy=greedy)
    assert len(set(returns)) > 3  # lengths differ, so the first seven to end would be the short ones


def test_evaluation_draws_actions_from_the_episode_not_from_the_place():
    task = GymTask("CartPole-v1")
    play = {envs: evaluate_control(task, policy_for(task), None, episodes=6, seed=2, envs=envs, greedy=False) for envs in (1, 4)}
    assert play[1] == play[4]
    assert play[1] != evaluate_control(task, policy_for(task), None, episodes=6, seed=2, envs=4)


def test_evaluation_uses_the_saved_observation_statistics_and_does_not_move_them():
    task = GymTask("Pendulum-v1")
    policy = policy_for(task)
    policy.actor[-1].weight.data.mul_(100)
    sampler = rollout(task, policy, observations=True)
    collect(sampler, 0)
    state = sampler.state()
    with_statistics = evaluate_control(task, policy, state, episodes=2, seed=0)
    assert with_statistics == evaluate_control(task, policy, state, episodes=2, seed=0)
    assert with_statistics != evaluate_control(task, policy, None, episodes=2, seed=0)
    assert state["observation.count"] == sampler.observations.moments.count == 16


# -- tasks ---------------------------------------------------------------------------------------------------------------


def test_actions_are_clipped_for_the_environment_and_kept_as_drawn_for_learning():
    task = clock_task(action=box(-0.1, 0.2))
    sampler = rollout(task, policy_for(task), envs=1, horizon=40)
    action = collect(sampler, 0).action[0]
    taken = torch.from_numpy(np.stack(sampler._envs._envs[0].unwrapped.taken))
    assert action.shape == (40, 2) and action.abs().max() > 0.5
    assert torch.equal(taken, action.clamp(-0.1, 0.2)) and taken.max() == np.float32(0.2)


def test_discrete_spaces_that_do_not_start_at_zero():
    task = clock_task(observation=gymnasium.spaces.Discrete(3, start=5), action=gymnasium.spaces.Discrete(2, start=-1))
    assert (task.observation_size, task.action_size, task.continuous) == (3, 2, False)
    sampler = rollout(task, policy_for(task), envs=1, horizon=9)
    rows = collect(sampler, 0)
    assert rows.inputs.observation[0, :4].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert [a + 1 for a in sampler._envs._envs[0].unwrapped.taken] == rows.action[0].tolist()
    assert set(rows.action[0].tolist()) == {0, 1}


@pytest.mark.parametrize(
    "spaces",
    [
        {"observation": gymnasium.spaces.Box(0, 255, (4, 8, 8, 3), np.uint8)},
        {"observation": gymnasium.spaces.MultiDiscrete([2, 3])},
        {"observation": gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))},
        {"action": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)])},
    ],
    ids=["stacked colour images", "multi-part observation", "sequence", "tree of actions"],
)
def test_spaces_that_cannot_be_used_are_refused_by_name(spaces):
    with pytest.raises(TaskError) as caught:
        clock_task(**spaces)
    assert str(next(iter(spaces.values()))) in str(caught.value)


def test_a_component_with_one_choice_is_always_taken():
    task = clock_task(action=gymnasium.spaces.MultiDiscrete([1, 2], start=[4, 0]), max_episode_steps=3)
    sampler = rollout(task, policy_for(task), envs=1)
    rows = collect(sampler, 0)
    assert not rows.action[..., 0].any() and rows.action[..., 1].any()
    assert {tuple(taken) for taken in sampler._envs._envs[0].unwrapped.taken} == {(4, 0), (4, 1)}
    torch.testing.assert_close(rows.behavior.logp, torch.full((1, 8), 0.5).log(), atol=0.05, rtol=0)


def test_a_network_for_vectors_refuses_images_by_name():
    task = clock_task(observation=gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8))
    with pytest.raises(MethodError, match=r"images as observations, Box\(0, 255, \(8, 8, 3\), uint8\).*MLP"):
        policy_for(task)


def test_a_diverged_simulation_is_told_and_not_learned_from():
    task = clock_task(max_episode_steps=3)
    sampler = rollout(task, policy_for(task), envs=1)
    sampler.restart(0)
    sampler._envs._envs[0].unwrapped.drawn = float("nan")
    with pytest.raises(TaskError, match="not a finite number"):
        collect(sampler, 0)


@pytest.mark.oracle("stable-baselines3")
def test_stable_baselines_finds_the_same_return():
    """On the same first states: our episodes have a seed each, theirs one for each environment."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    task = GymTask("Pendulum-v1")
    policy = MLPPolicy.for_task(task, seed=3)
    own = evaluate_control(task, policy, None, episodes=4, seed=5)
    envs = make_vec_env("Pendulum-v1", 4)
    envs._seeds = [_episode_seed(5, episode) for episode in range(4)]
    found, _ = evaluate_policy(DeployedPolicy(task, policy, None), envs, n_eval_episodes=4)
    assert np.mean(own) == pytest.approx(found, rel=1e-6)
