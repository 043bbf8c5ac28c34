"""MiniRL: what the correction for the real sampler buys, exactly, on a policy whose answers can all be listed."""

from __future__ import annotations

import math

import pytest
import torch
from batches import at_proximal, gradient, random_batch, replace_view
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.surrogate.masked import MaskedLikelihood
from upslope.types import Batch, View

minirl, reinforce, rec = find("minirl"), find("reinforce"), find("rec")


def _sampled_by_the_trained_policy(batch: Batch) -> Batch:
    return batch.replace(behavior=View(batch.proximal.logp.detach()))


@pytest.mark.checks("identity", "minirl")
def test_with_one_engine_and_at_the_first_update_it_is_reinforce(ragged_batch: Batch):
    batch = _sampled_by_the_trained_policy(at_proximal(ragged_batch))
    torch.testing.assert_close(gradient(minirl, batch).logp, gradient(reinforce, batch).logp)


@pytest.mark.checks("identity", "minirl")
def test_with_one_engine_it_is_rec(ragged_batch: Batch):
    batch = _sampled_by_the_trained_policy(ragged_batch)
    theirs = rec.derive(aggregate=minirl.aggregate, surrogate=MaskedLikelihood(low=0.2, high=0.27))
    ours = gradient(minirl.with_knobs({"surrogate.cap": math.inf}), batch)
    torch.testing.assert_close(ours.logp, gradient(theirs, batch).logp, rtol=1e-9, atol=1e-12)


# -- a sampler that differs from the trained policy ------------------------------------------------------------------------


def _reward(policy: ExactPolicy) -> Tensor:
    tokens, sampled = policy.sequences()
    return 2.0 + (tokens == 1).double().sum(1) * 0.5 - 0.3 * sampled.sum(1)


def _expected(policy: ExactPolicy, sampler: ExactPolicy, importance: str) -> Tensor:
    """The gain's gradient in expectation over the sampler: every answer once, its reward times its probability."""
    chance = sampler.sequence_logp().exp().detach()
    every = torch.arange(len(chance))
    batch = policy.batch(every, _reward(policy) * chance * len(chance), samples=1)
    batch = batch.replace(behavior=View(sampler.logp(batch.action).detach()))
    method = minirl.derive(advantage=RawReward(), surrogate=MaskedLikelihood(importance=importance))
    return -policy.gradient(method, batch)


def _errors(noise: float) -> dict[str, float]:
    policy = ExactPolicy.random(seed=3)
    sampler = policy.moved(seed=7, by=noise)
    exact = policy.expected_gradient(_reward(policy))
    return {
        importance: float((_expected(policy, sampler, importance) - exact).norm()) for importance in ("none", "ratio", "behavior")
    }


@pytest.mark.checks("identity", "minirl")
def test_the_correction_removes_most_of_the_bias():
    for noise in (0.2, 0.1, 0.05):
        found = _errors(noise)
        assert found["ratio"] == pytest.approx(found["none"]), "the step's own ratio is one and corrects nothing"
        assert found["behavior"] < 0.2 * found["none"]
    assert _errors(1e-6)["behavior"] < 1e-6


@pytest.mark.checks("identity", "minirl")
def test_the_surrogate_it_differentiates_is_wrong_to_second_order_only():
    policy = ExactPolicy.random(seed=3)
    tokens, sampled = policy.sequences()

    def surrogate(sampler: ExactPolicy) -> Tensor:
        ratio = (policy.logp(tokens) - sampler.logp(tokens).detach()).exp()
        chance = sampler.sequence_logp().exp().detach()
        return chance @ (_reward(policy) * (1 + ((ratio - 1) * sampled).sum(1)))

    truth = policy.expected(_reward(policy)).item()
    errors = []
    for noise in (0.1, 0.05, 0.025):
        sampler = policy.moved(seed=7, by=noise)
        value = surrogate(sampler)
        errors.append(abs(value.item() - truth))
        (slope,) = torch.autograd.grad(value, policy.logits)
        torch.testing.assert_close(_expected(policy, sampler, "behavior"), slope)
    assert [errors[0] / errors[1], errors[1] / errors[2]] == pytest.approx([4, 4], rel=0.15), "halving the noise quarters it"


@pytest.mark.checks("identity", "minirl")
def test_answers_of_one_token_leave_no_bias_at_all():
    """With a single decision the token's weight is the answer's: the estimator is exact for any sampler."""
    table = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits, other = table[0].clone().requires_grad_(), table[1]
    reward = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0], dtype=torch.float64)
    (exact,) = torch.autograd.grad(logits.softmax(0) @ reward, logits)
    logp, chance = logits.log_softmax(0).unsqueeze(1), other.softmax(0)
    batch = random_batch(seed=0, groups=5, samples=1, positions=1, ragged=False)
    batch = batch.replace(reward=reward * chance * 5, behavior=View(chance.log().unsqueeze(1)))
    batch = replace_view(batch, "current", logp=logp.detach())
    batch = replace_view(batch, "proximal", logp=logp.detach())
    method = minirl.derive(advantage=RawReward()).with_knobs({"surrogate.cap": math.inf})
    (ours,) = torch.autograd.grad(logp, logits, -gradient(method, batch).logp)
    torch.testing.assert_close(ours, exact)


# -- numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "minirl", by="hand-worked numbers")
def test_mask_weight_and_cap_by_hand():
    # Two answers of three tokens. r = 0.7, 1, 1.5 against the proximal policy, which is 4 times as likely as the sampler:
    # the weights are 2.8, 4 and 6, the last capped at 5. A = ±1/2, two answers.
    batch = random_batch(seed=0, groups=1, samples=2, positions=3, ragged=False)
    batch = batch.replace(reward=torch.tensor([1.0, 0.0], dtype=torch.float64), behavior=View(batch.proximal.logp - math.log(4)))
    batch = replace_view(batch, "current", logp=batch.proximal.logp + torch.tensor([0.7, 1, 1.5], dtype=torch.float64).log())
    found = gradient(minirl, batch).logp
    # Above 1.27 the right answer stops, below 0.8 the wrong one.
    expected = torch.tensor([[-0.25 * 2.8, -0.25 * 4, 0], [0, 0.25 * 4, 0.25 * 5]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@pytest.mark.checks("identity", "minirl")
def test_rows_nobody_sampled_are_refused(ragged_batch: Batch):
    logp = ragged_batch.behavior.logp.clone()
    logp[0, 0] = torch.nan
    with pytest.raises(MethodError, match="nobody sampled"):
        gradient(minirl, ragged_batch.replace(behavior=View(logp)))
    assert gradient(rec, ragged_batch.replace(behavior=View(logp))).finite()
