"""PPO: its first update is REINFORCE with its advantage; whole steps against Stable-Baselines3, GAE against torchrl and by hand."""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch
from batches import at_proximal, gradient
from choice_environments import Dials
from oracles import control_batch, loss_and_gradient, one_answer, torchrl_gae
from torch import Tensor

from upslope.methods import find
from upslope.methods.control.presets import preset_for
from upslope.objective.advantage import GAE
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood, PessimisticClip
from upslope.types import Batch, Ended, View

ppo = find("ppo")
SEEDS = range(4)


@pytest.mark.checks("identity", "ppo")
def test_ppo_at_the_first_update_is_reinforce_with_its_advantage(ragged_batch: Batch):
    batch = at_proximal(ragged_batch)
    score = ppo.derive(ratio=NoRatio(), surrogate=LogLikelihood())
    torch.testing.assert_close(gradient(ppo, batch).logp, gradient(score, batch).logp)


@pytest.mark.checks("oracle", "ppo", by="GAE equals that of torchrl")
@pytest.mark.oracle("torchrl")
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_torchrl(seed: int, lam: float):
    batch, gae = control_batch(seed), GAE(gamma=0.97, lam=lam)
    advantage, returns = torchrl_gae(batch, gae)
    ours = gae(batch)
    torch.testing.assert_close(ours, advantage, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gae.signals(batch, ours)["returns"], returns, rtol=1e-6, atol=1e-6)


@pytest.mark.checks("oracle", "ppo", by="GAE equals that of torchrl")
@pytest.mark.oracle("torchrl")
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_passes_over_what_was_not_sampled(seed: int):
    """With tool tokens cut out of each row, the others see an ordinary row."""
    batch, gae = control_batch(seed), GAE(gamma=0.97, lam=0.9)
    spread = torch.tensor([0, 1, 4, 5, 6, 9, 10, 11, 12, 15, 16, 17])  # holes at 2, 3, 7, 8, 13, 14

    def widen(column: Tensor) -> Tensor:
        if column.dim() == 1:
            return column
        wide = torch.full((column.shape[0], 18), 77, dtype=column.dtype)
        wide[:, spread] = column
        return wide

    wide = batch._map(widen)
    wide = wide.replace(
        sampled=torch.where(wide.sampled == 77, 0.0, wide.sampled), ended=torch.where(wide.ended == 77, 0, wide.ended)
    )
    found = gae(wide)
    torch.testing.assert_close(found[:, spread], torchrl_gae(batch, gae)[0], rtol=1e-6, atol=1e-6)
    assert not found[:, [2, 3, 7, 8, 13, 14]].any()


@pytest.mark.checks("oracle", "ppo", by="GAE equals that of Stable-Baselines3")
@pytest.mark.oracle("stable-baselines3")
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_stable_baselines(seed: int):
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    batch, gae = control_batch(seed), GAE(gamma=0.97, lam=0.9)
    rows, positions = batch.sampled.shape
    buffer = RolloutBuffer(positions, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gamma=gae.gamma, gae_lambda=gae.lam, n_envs=rows)
    # It knows "done" only: what stands behind a truncation is added to the reward, discounted.
    truncated = batch.ended == Ended.TRUNCATED
    reward = batch.step_reward + gae.gamma * batch.bootstrap * truncated
    done = ((batch.ended == Ended.TERMINATED) | truncated).numpy()
    buffer.rewards = reward.T.numpy()
    buffer.values = batch.proximal.value.T.numpy()
    buffer.episode_starts = np.concatenate([np.zeros((1, rows)), done.T[:-1]]).astype(np.float32)
    buffer.advantages = np.zeros((positions, rows))
    buffer.compute_returns_and_advantage(last_values=batch.bootstrap[:, -1], dones=done[:, -1])
    ours = gae(batch)
    torch.testing.assert_close(ours, torch.from_numpy(buffer.advantages.T.copy()), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gae.signals(batch, ours)["returns"], torch.from_numpy(buffer.returns.T.copy()), rtol=1e-6, atol=1e-6)


def assert_near(found: Tensor, wanted: Tensor, name: str, atol: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=atol, msg=lambda said: f"{name}: {said}")


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.checks("oracle", "ppo", by="whole steps equal those of Stable-Baselines3")
@pytest.mark.oracle("stable-baselines3")
@pytest.mark.parametrize(
    ("env", "horizon", "inside", "at_the_end"),
    [
        ("Pendulum-v1", 230, Ended.TRUNCATED, Ended.PAUSED),
        ("Pendulum-v1", 200, Ended.NO, Ended.TRUNCATED),
        ("CartPole-v1", 90, Ended.TERMINATED, Ended.PAUSED),
    ],
)
def test_whole_steps_equal_those_of_stable_baselines(
    env: str, horizon: int, inside: Ended, at_the_end: Ended, monkeypatch: pytest.MonkeyPatch
):
    """The second rollout goes on where the first stopped; the last minibatch of a pass is a smaller one."""
    from beside_stable_baselines import our_steps, their_steps

    zoo = preset_for("rl-zoo", f"gym:{env}")
    # Schedules are left out: theirs counts the rollout that is being learned from as done, so it is one step ahead of ours.
    preset = dataclasses.replace(
        zoo, n_envs=2, n_steps=horizon, batch_size=64, n_epochs=3, ent_coef=0.01, linear_lr=False, linear_clip=False
    )
    first, own, rows = our_steps(preset, env, monkeypatch)
    assert (rows[0].ended[:, :-1] == inside).any() and (rows[0].ended[:, -1] == at_the_end).any()
    assert preset.n_envs * horizon % preset.batch_size
    for found, wanted in zip(own, their_steps(preset, env, first, rows, monkeypatch), strict=True):
        for name, column in wanted.columns.items():
            assert_near(found.columns[name], column, name, atol=1e-4)
        assert found.norms == pytest.approx(wanted.norms, rel=1e-4) and max(found.norms) > preset.max_grad_norm
        for name, weight in wanted.weights.items():
            assert_near(found.weights[name], weight, name, atol=1e-5)
    assert (own[-1].weights["critic.2.bias"] - first["critic.2.bias"]).abs() > 1e-3


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.checks("oracle", "ppo", by="whole steps equal those of Stable-Baselines3")
@pytest.mark.oracle("stable-baselines3")
def test_steps_with_several_choices_at_once_are_those_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch):
    """One ratio for all components of an action: their probabilities are multiplied."""
    from beside_stable_baselines import our_steps, their_steps

    # Stable-Baselines3 gives ids from 0 on, in 64 bits.
    gymnasium.register("Dials-v0", entry_point=Dials, kwargs={"first": (0, 0, 0), "kind": np.int64})
    zoo = preset_for("rl-zoo", "gym:CartPole-v1")
    preset = dataclasses.replace(
        zoo, n_envs=2, n_steps=60, batch_size=48, n_epochs=3, ent_coef=0.01, linear_lr=False, linear_clip=False
    )
    try:
        first, own, rows = our_steps(preset, "Dials-v0", monkeypatch)
        theirs = their_steps(preset, "Dials-v0", first, rows, monkeypatch)
    finally:
        gymnasium.registry.pop("Dials-v0")
    assert rows[0].action.shape == (2, 60, 3) and rows[0].proximal.logp.shape == (2, 60)
    for found, wanted in zip(own, theirs, strict=True):
        for name, column in wanted.columns.items():
            assert_near(found.columns[name], column, name, atol=1e-4)
        assert found.norms == pytest.approx(wanted.norms, rel=1e-4)
        for name, weight in wanted.weights.items():
            assert_near(found.weights[name], weight, name, atol=1e-5)
    assert (own[-1].weights["actor.2.bias"] - first["actor.2.bias"]).abs().max() > 1e-3


@pytest.mark.checks("oracle", "ppo", by="GAE and the dual clip worked out by hand")
def test_gae_by_hand():
    """Two steps and a termination; gamma = 0.5, lambda = 0.5: delta = (1 + 0.5*4 - 2, 3 + 0 - 4), A = (1 + 0.25 * -1, -1)."""
    view = View(torch.zeros(1, 2), value=torch.tensor([[2.0, 4.0]]))
    ended = torch.tensor([[0, 1]], dtype=torch.int8)
    batch = Batch(
        sampled=torch.ones(1, 2), reward=torch.tensor([2.0]), group=torch.zeros(1), task=torch.zeros(1), behavior=view,
        proximal=view, step_reward=torch.tensor([[1.0, 1.0]]), ended=ended, bootstrap=torch.full((1, 2), math.nan),
    )  # fmt: skip
    # The row's reward of 2 is paid at its last decision, on top of the step's 1.
    advantage = GAE(gamma=0.5, lam=0.5)(batch)
    assert advantage.tolist() == [[0.75, -1.0]]
    assert GAE().signals(batch, advantage)["returns"].tolist() == [[2.75, 3.0]]


@pytest.mark.checks("oracle", "ppo", by="GAE and the dual clip worked out by hand")
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(7.0, -1.0, 3.0, 0.0), (2.0, -1.0, 2.0, 2.0), (7.0, 1.0, -1.2, 0.0), (0.5, -2.0, 1.6, 0.0), (0.5, 2.0, -1.0, -1.0)],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float):
    method = find("grpo").derive(surrogate=PessimisticClip(0.2, 0.2, dual=3.0), regularize=None)
    assert loss_and_gradient(method, one_answer([ratio], advantage)) == (pytest.approx(loss), [pytest.approx(slope)])
