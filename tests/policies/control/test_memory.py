"""Memory: whole rows are what step after step gives, ends forget, and nothing that acts or judges remembers otherwise."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from cue_environment import Cue
from rollout_calls import collect
from torch import Tensor

import upslope as up
from upslope.datasets.behaviours import PolicyActions
from upslope.errors import MethodError, UserError
from upslope.learners.metrics import MetricSums
from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.updates.rows import RowUpdater
from upslope.methods import find
from upslope.objective.ratio import SequenceRatio
from upslope.policies.control.memory import RecurrentMemory
from upslope.policies.control.networks import Recurrent
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.deployed import DeployedPolicy
from upslope.rollout.environments import EnvRollout, evaluate_control
from upslope.rollout.recorded_episode import play
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.gym import GymTask
from upslope.testing.runs import Breaks, Crash, assert_same_run
from upslope.types import Ended, Trajectories

torch.set_num_threads(1)
CELLS = ("gru", "lstm")
cells = pytest.mark.parametrize("cell", CELLS)


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("Cue-v0", entry_point=Cue, max_episode_steps=6)
    gymnasium.register("Clock-v0", entry_point=Clock, max_episode_steps=5)
    yield
    gymnasium.registry.pop("Cue-v0")
    gymnasium.registry.pop("Clock-v0")


# -- the cell --------------------------------------------------------------------------------------------------------------


def step_by_step(memory: RecurrentMemory, features: Tensor, state: Tensor, begins: Tensor) -> Tensor:
    """The rows as they would be acted on: one step after the other, forgetting where an episode begins."""
    found = []
    for position in range(features.shape[1]):
        if position:
            state = state * ~begins[:, position].unsqueeze(1)
        output, state = memory.step(features[:, position], state)
        found.append(output)
    return torch.stack(found, 1)


@cells
def test_a_row_with_an_end_inside_by_hand(cell):
    """Of three steps the third begins an episode: it knows nothing of the others, and they not of it."""
    memory = RecurrentMemory(2, 3, cell, seed=1)
    row = torch.tensor([[[1.0, -1.0], [0.5, 2.0], [-2.0, 0.3]]])
    before = torch.full((1, memory.state_size), 0.4)
    found = memory(row, before, torch.tensor([[False, False, True]]))
    with torch.no_grad():
        first, state = memory.step(row[:, 0], before)
        second, _ = memory.step(row[:, 1], state)
        third, _ = memory.step(row[:, 2], torch.zeros(1, memory.state_size))
    torch.testing.assert_close(found, torch.stack([first, second, third], 1))
    gru = memory.cell
    if cell == "gru":  # torch's own formula, gate by gate
        new = [gru.weight_ih_l0[6:] @ row[0, 2], gru.weight_ih_l0[3:6] @ row[0, 2]]
        torch.testing.assert_close(found[0, 2], (1 - new[1].sigmoid()) * new[0].tanh())


@cells
def test_rows_and_their_gradient_are_those_of_the_naive_loop(cell):
    memory, random = RecurrentMemory(4, 5, cell, seed=2).double(), torch.Generator().manual_seed(3)
    begins = torch.rand(6, 9, generator=random) < 0.3
    begins[0], begins[1], begins[:, 0] = False, True, begins[:, 0]
    weights = torch.randn(6, 9, 5, generator=random).double()
    grads = []
    for way in (memory.__call__, lambda *given: step_by_step(memory, *given)):
        features = torch.randn(6, 9, 4, generator=torch.Generator().manual_seed(4)).double().requires_grad_()
        state = torch.randn(6, memory.state_size, generator=torch.Generator().manual_seed(5)).double().requires_grad_()
        output = way(features, state, begins)
        grads.append([output, *torch.autograd.grad((output * weights).sum(), [features, state, *memory.parameters()])])
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted)
    assert grads[0][2].abs().min() > 0, "the state in front of a row is felt"


# -- rollouts --------------------------------------------------------------------------------------------------------------


class Clock(gymnasium.Env):
    """Observes how long the episode has run and a number drawn at its start; ends of itself after some steps of its seed's."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.drawn, self.ends = 0, float(self.np_random.random()), int(self.np_random.integers(2, 12))
        return np.array([self.time, self.drawn], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time, self.drawn], np.float32), float(action), self.time >= self.ends, False, {}


def clock_task() -> GymTask:
    return GymTask("Clock-v0")


def remembering(task: GymTask, cell: str = "gru", **fields) -> TorchPolicy:
    policy = Recurrent(memory=7, cell=cell, hidden=(6,), **fields).build(task, 3)
    policy.add_value_head(4)
    with torch.no_grad():
        policy.stacks["policy"][-1].weight.mul_(100)  # or all actions are as likely, whatever is remembered
    return policy


def rollout(task: GymTask, policy: TorchPolicy, envs: int = 4, horizon: int = 13) -> EnvRollout:
    return EnvRollout(task, policy, envs=envs, horizon=horizon, seed=5, gamma=0.9,
                      normalise_observations=False, normalise_rewards=False)  # fmt: skip


@cells
def test_learning_sees_what_acting_saw(cell):
    """The log-probabilities and values of whole rollouts, ends inside, the second from what was remembered at the first's end."""
    task = clock_task()
    policy = remembering(task, cell)
    sampler = rollout(task, policy)
    for step in (0, 1):
        rows = collect(sampler, step)
        assert {int(end) for end in rows.ended.flatten()} >= {Ended.NO, Ended.TERMINATED, Ended.TRUNCATED}
        assert rows.inputs.memory.shape == (4, policy.memory_size) and bool(rows.inputs.memory.any()) == bool(step)
        found = policy.evaluate(rows, frozenset({"entropy", "value"}))
        for name in ("logp", "entropy", "value"):
            torch.testing.assert_close(found[name].detach(), rows.behavior[name], rtol=1e-5, atol=1e-5)
    forgetful = policy.evaluate(rows.replace(ended=torch.zeros_like(rows.ended)))
    assert (forgetful.logp - rows.behavior.logp).abs().max() > 1e-2, "or ends were not looked at"


@cells
def test_values_behind_cuts_are_of_the_final_observation_under_what_was_remembered_then(cell):
    task = clock_task()
    policy = remembering(task, cell)
    rows = collect(rollout(task, policy), 0)
    checked = 0
    for row in range(rows.rows):
        memory = torch.zeros(1, policy.memory_size)
        for position in range(rows.sampled.shape[1]):
            seen, end = rows.inputs.observation[row, position], int(rows.ended[row, position])
            with torch.no_grad():
                _, memory = policy.remembered(seen[None], memory)
            following = torch.tensor([[seen[0] + 1, seen[1]]])
            if end in (Ended.TRUNCATED, Ended.PAUSED):
                torch.testing.assert_close(rows.bootstrap[row, position], policy.value(following, memory)[0])
                checked += int((policy.value(following, memory) - policy.value(following)).abs() > 1e-2)
            if end != Ended.NO:
                memory = torch.zeros_like(memory)
    assert checked > 4, "or memory made no difference"


def test_a_restart_forgets():
    task = clock_task()
    sampler = rollout(task, remembering(task))
    collect(sampler, 0)
    sampler.restart(7)
    again = rollout(task, remembering(task))
    again.restart(7)
    one, other = collect(sampler, 7), collect(again, 7)
    assert torch.equal(one.behavior.logp, other.behavior.logp) and not one.inputs.memory.any()


# -- in use ----------------------------------------------------------------------------------------------------------------


@cells
def test_evaluation_the_recorded_episode_and_predict_remember_alike(cell):
    task = GymTask("Cue-v0")
    policy = remembering(task, cell)
    returns = evaluate_control(task, policy, None, episodes=7, seed=2, envs=3)
    assert returns == evaluate_control(task, policy, None, episodes=7, seed=2, envs=1), "each environment has its own memory"
    recorded, deployed = play(task, policy, None, seed=9), DeployedPolicy(task, policy, None)
    env, state, actions = gymnasium.make("Cue-v0"), None, []
    seen, _ = env.reset(seed=9)
    for _ in range(6):
        action, state = deployed.predict(seen, state, deterministic=True)
        actions.append(int(action))
        seen, *_ = env.step(actions[-1])
    assert actions == recorded.actions and state.shape == (1, policy.memory_size)
    batch = np.ones((3, 2), np.float32)
    _, state = deployed.predict(batch, deterministic=True)
    _, behind = deployed.predict(batch, state, episode_start=np.array([False, True, False]), deterministic=True)
    _, begun = deployed.predict(batch, None, deterministic=True)
    assert np.array_equal(behind[1], begun[1]) and not np.allclose(behind[0], begun[0])
    with pytest.raises(UserError, match=r"state has the shape \(3, .*that of 1 episodes"):
        deployed.predict(batch[0], state)


def test_whoever_makes_data_with_it_remembers_too():
    task = GymTask("Cue-v0")
    actor = remembering(task).acting()
    who, seen = PolicyActions(task, actor, None), np.array([[1, 0], [0, 0], [0, 1]], np.float32)
    for _ in range(2):  # the second episode knows nothing of the first
        who.begin(None, seen[0], np.random.default_rng(0))
        memory = np.zeros((1, actor.memory_size), np.float32)
        for observation in seen:
            who.act(observation)
            _, memory = actor.step(observation[None], memory)
            assert np.array_equal(who.memory, memory) and memory.any()


def test_predict_in_the_loop_of_stable_baselines():
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    task = GymTask("Cue-v0")
    mean, _ = evaluate_policy(DeployedPolicy(task, remembering(task), None), make_vec_env("Cue-v0", 2), n_eval_episodes=4)
    assert 0 <= mean <= 1


def test_what_cannot_be_is_refused():
    task = clock_task()
    policy = remembering(task)
    with pytest.raises(UserError, match="remembers what came before"):
        policy.greedy_network()
    rows = collect(rollout(task, policy), 0)
    with pytest.raises(MethodError, match="what was remembered"):
        policy.evaluate(rows.replace(inputs=type(rows.inputs)(rows.inputs.observation)))
    with pytest.raises(UserError, match="learns from stored experience, and policy=Recurrent"):
        set_up(find("sac").derive(policy=Recurrent()), "gym:CartPole-v1", "tiny", Settings(steps=1))
    with pytest.raises(MethodError, match="memory of Recurrent is 0"):
        set_up(find("ppo"), "gym:CartPole-v1", "tiny", Settings(steps=1), knobs={"policy": "Recurrent(memory=0)"})


# -- tables: how rows are cut, what was not sampled ------------------------------------------------------------------------

METHODS = {"ppo": find("ppo"), "bpo": find("bpo"), "ppo, rows": find("ppo").derive(ratio=SequenceRatio())}
SETTINGS = Settings(steps=1, envs=4, horizon=13).resolved("control", "mlp")


def gradients(name: str, policy: TorchPolicy, rows: Trajectories, monkeypatch, at_once: int) -> list[Tensor]:
    """Of an update on these rows, evaluated so many decisions at once."""
    learner = PolicyGradient(METHODS[name], policy, _Given(rows), SETTINGS)
    prepared = learner.views.before_step(METHODS[name], learner._with_keys_and_rewards(METHODS[name], rows, 1, 0), True)
    from upslope.objective import estimator

    updater = learner.updater(METHODS[name])
    assert isinstance(updater, RowUpdater), "rows are learned from whole"
    monkeypatch.setattr(policy, "token_budget", lambda: at_once)
    monkeypatch.setattr(learner.optimizer_step, "apply", lambda norm, sums: True)
    updater.update(estimator.annotate(METHODS[name], prepared), 0, MetricSums())
    return [weight.grad.clone() for weight in policy.parameters()]


class _Given:
    provides = EnvRollout.provides

    def __init__(self, rows: Trajectories):
        self.rows = rows


@pytest.mark.parametrize("name", METHODS)
def test_how_an_update_is_cut_changes_nothing(name, monkeypatch):
    task = clock_task()
    policy = remembering(task)
    for head, model in METHODS[name].heads:
        policy.add_head(head, model.head(), 0)
    rows = collect(rollout(task, policy), 0)
    whole = gradients(name, policy, rows, monkeypatch, at_once=1000)
    for at_once in (26, 13):
        for found, wanted in zip(gradients(name, policy, rows, monkeypatch, at_once), whole, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert all(grad.abs().max() > 0 for grad in whole)


@pytest.mark.parametrize("name", METHODS)
def test_what_was_not_sampled_is_remembered_and_not_learned_from(name, monkeypatch):
    task = clock_task()
    policy = remembering(task)
    for head, model in METHODS[name].heads:
        policy.add_head(head, model.head(), 0)
    rows = collect(rollout(task, policy), 0)
    sampled = rows.sampled.clone()
    sampled[:, 2], sampled[1, 5:8] = 0, 0
    other = torch.where(sampled == 0, (rows.action + 1) % 3, rows.action)
    wanted = gradients(name, policy, rows.replace(sampled=sampled), monkeypatch, 1000)
    found = gradients(name, policy, rows.replace(sampled=sampled, action=other), monkeypatch, 1000)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


# -- runs ------------------------------------------------------------------------------------------------------------------

CUE = dict(envs=8, horizon=60, minibatch=120, passes=6, lr=3e-3, record="none", threads=1)


def test_updates_are_as_many_as_minibatches_fill_and_at_most_one_a_row(tmp_path):
    for minibatch, updates in ((120, 4), (5, 8)):
        given = CUE | {"minibatch": minibatch, "passes": 1, "horizon": 60, "steps": 1, "eval_problems": 1}
        run = up.train("ppo", "gym:Cue-v0", knobs={"policy": "Recurrent(memory=4)"}, out=tmp_path / str(minibatch), **given)
        assert run.metrics[0]["updates"] == updates


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path):
    given = CUE | dict(steps=3, envs=2, horizon=16, passes=1, eval_problems=2, checkpoint_every=2, record="some")
    given["knobs"] = {"policy": "Recurrent(memory=4, cell=lstm)"}
    whole = up.train("ppo", "gym:Cue-v0", out=tmp_path / "whole", **given)
    with pytest.raises(Crash):
        up.train("ppo", "gym:Cue-v0", out=tmp_path / "cut", watcher=Breaks(3), **given)
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")


@pytest.mark.slow
def test_it_learns_what_must_be_remembered_and_a_network_without_memory_does_not(tmp_path):
    scores = {}
    for policy in ("Recurrent(memory=32)", "MLP"):
        run = up.train("ppo", "gym:Cue-v0", knobs={"policy": policy}, steps=12, eval_problems=50, out=tmp_path / policy, **CUE)
        scores[policy] = run.summary["score_after"]
    assert scores["Recurrent(memory=32)"] > 0.95 and scores["MLP"] < 0.7
