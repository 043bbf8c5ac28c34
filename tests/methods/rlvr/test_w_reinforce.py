"""Positive and negative reinforcement: what one step does to the logits, and what the two add up to."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.advantage.signed import SignedReward
from upslope.objective.estimator import method_loss
from upslope.types import Batch, View

psr, nsr, w_reinforce, grpo = (find(name) for name in ("psr", "nsr", "w-reinforce", "grpo"))


def one_token(logits: Tensor, token: int, reward: float) -> Batch:
    """One row of one token, whose current log-probability differentiates to the logits."""
    logp = logits.log_softmax(0)[token].view(1, 1)
    one = torch.ones(1, 1, dtype=logits.dtype)
    zero = torch.zeros(1, dtype=torch.long)
    view = View(logp.detach())
    return Batch(one, torch.tensor([reward]).double(), zero, zero, behavior=view, proximal=view, current=View(logp))


@pytest.mark.checks("oracle", "psr", "nsr", "w-reinforce", by="closed forms")
@pytest.mark.parametrize(("method", "reward", "size"), [("nsr", 0.0, -1.0), ("psr", 1.0, 1.0), ("w-reinforce", 1.0, 0.1)])
def test_a_step_moves_the_other_tokens_by_belief(method: str, reward: float, size: float):
    logits = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(method_loss(find(method), one_token(logits, 2, reward)), logits)
    chance = logits.detach().softmax(0)
    expected = -chance * size
    expected[2] = (1 - chance[2]) * size
    torch.testing.assert_close(-slope, expected)  # what a step of rate one adds to the logits


@pytest.mark.parametrize(("method", "reward"), [("nsr", 1.0), ("psr", 0.0)])
def test_the_other_half_is_left_alone(method: str, reward: float):
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert not torch.autograd.grad(method_loss(find(method), one_token(logits, 1, reward)), logits)[0].any()


@pytest.mark.checks("identity", "psr", "nsr", "w-reinforce")
def test_the_halves_add_up_and_at_one_it_is_reinforce_on_signed_rewards():
    batch = random_batch(seed=1)
    right, wrong = psr.advantage(batch), nsr.advantage(batch)
    torch.testing.assert_close(w_reinforce.advantage(batch), 0.1 * right + wrong)
    signed = batch.replace(reward=torch.where(batch.reward >= 0.5, 1.0, -1.0).double())
    assert torch.equal(SignedReward(right=1.0, wrong=-1.0)(batch), RawReward()(signed))
    even = w_reinforce.with_knobs({"advantage.right": 1.0})
    raw = grpo.derive(advantage=RawReward(), aggregate=w_reinforce.aggregate, regularize=None)
    assert_same(gradient(even, batch), gradient(raw, signed), exact=True)


@pytest.mark.checks("identity", "psr", "nsr")
def test_on_rewards_of_zero_and_one_they_are_the_reward_and_the_reward_minus_one():
    batch = random_batch(seed=2)
    batch = batch.replace(reward=(batch.reward > 0.5).double())
    assert torch.equal(psr.advantage(batch), batch.per_decision(batch.reward))
    assert torch.equal(nsr.advantage(batch), batch.per_decision(batch.reward - 1))


@pytest.mark.checks("oracle", "psr", "nsr", "w-reinforce", by="verl")
@pytest.mark.parametrize("method", ["psr", "nsr", "w-reinforce"])
def test_the_loss_is_verls_clipped_loss_with_that_advantage(method: str):
    from verl.trainer.ppo.core_algos import compute_policy_loss

    batch = random_batch(seed=3)
    ours = gradient(find(method), batch)
    leaf = batch.current.logp
    value = {"psr": (1.0, 0.0), "nsr": (0.0, -1.0), "w-reinforce": (0.1, -1.0)}[method]
    advantage = torch.where(batch.reward >= 0.5, *(torch.tensor(v).double() for v in value)).unsqueeze(1) * batch.sampled
    # A dual bound of a thousand is none on this batch.
    loss, *_ = compute_policy_loss(batch.proximal.logp, leaf, advantage, batch.sampled, cliprange=0.2, clip_ratio_c=1000.0)
    torch.testing.assert_close(ours.loss, loss.detach())
    torch.testing.assert_close(ours.logp, torch.autograd.grad(loss, leaf)[0])


def test_first_update_is_the_score_function():
    batch = at_proximal(random_batch(seed=4))
    slope = gradient(nsr, batch).logp
    wrong = (batch.reward < 0.5).double().unsqueeze(1) * batch.sampled
    torch.testing.assert_close(slope, wrong / batch.sampled.sum())
