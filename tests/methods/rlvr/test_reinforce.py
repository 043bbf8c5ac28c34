"""REINFORCE and RLOO: unbiased on a policy whose gradient is known exactly, and the leave-one-out form by hand."""

from __future__ import annotations

import pytest
import torch
from batches import at_proximal, gradient, random_batch
from exact_policy import ExactPolicy, chunk_gradients, varied_reward, worst_z, z_along
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import GroupBaseline, MovingBaseline, RawReward
from upslope.objective.estimator import annotate
from upslope.types import Batch, Method

reinforce, rloo = find("reinforce"), find("rloo")


SAMPLES = 2
"""Answers per group: where the group's own mean is most biased, by a factor of a half."""


@pytest.fixture(scope="module")
def exact() -> ExactPolicy:
    return ExactPolicy.random(seed=3)


def _chunks(policy: ExactPolicy) -> list[Batch]:
    """20,000 answers of the policy's own as 100 independent batches."""
    picks = policy.draw(20_000, seed=11)
    return [policy.batch(part, varied_reward(policy), SAMPLES) for part in picks.split(200)]


def _estimates(policy: ExactPolicy, advantage, method: Method = reinforce, baseline: float = 0.0) -> Tensor:
    method = method.derive(advantage=advantage)
    return chunk_gradients(policy, method, _chunks(policy), lambda batch: batch.replace(state={advantage: {"baseline": baseline}}))


UNBIASED = {
    "no baseline": (reinforce, RawReward(), 0.0),
    "moving baseline": (reinforce, MovingBaseline(), 2.0),
    "leave one out": (reinforce, GroupBaseline(scale="none", leave_one_out=True), 0.0),
    "rloo": (rloo, rloo.advantage, 0.0),
}


@pytest.mark.checks("oracle", "reinforce", "rloo", by="on a policy small enough to enumerate, its estimate is the exact gradient")
@pytest.mark.checks("identity", "reinforce", "rloo")
@pytest.mark.parametrize("case", UNBIASED)
def test_the_sample_gradient_is_the_exact_gradient(exact: ExactPolicy, case: str):
    method, advantage, baseline = UNBIASED[case]
    estimates = _estimates(exact, advantage, method, baseline)
    truth = exact.expected_gradient(varied_reward(exact))
    # Up to 120 coordinates: all stay below 4.5 with probability 0.998 (Student's t, 99 degrees of freedom). The seed is fixed.
    assert worst_z(estimates, truth) < 4.5
    assert abs(z_along(estimates, truth)) < 3.5


@pytest.mark.checks("identity", "reinforce")
def test_the_groups_own_mean_is_biased_by_exactly_its_share(exact: ExactPolicy):
    own = _estimates(exact, GroupBaseline(scale="none"))
    others = _estimates(exact, GroupBaseline(scale="none", leave_one_out=True))
    torch.testing.assert_close(own, others * (SAMPLES - 1) / SAMPLES)
    assert z_along(own, exact.expected_gradient(varied_reward(exact))) < -10, "the z-test must be able to see a bias"


def test_a_baseline_lowers_the_variance(exact: ExactPolicy):
    mean = exact.expected(varied_reward(exact)).item()
    raw, centred, siblings = (
        _estimates(exact, part, baseline=mean).var(0).sum()
        for part in (RawReward(), MovingBaseline(), GroupBaseline(scale="none", leave_one_out=True))
    )
    assert centred < 0.2 * raw and siblings < 0.5 * raw and centred < siblings


@pytest.mark.checks("identity", "rloo")
def test_rloo_at_the_first_update_is_reinforce_scaled(ragged_batch: Batch):
    """With four answers, R - (S - R) / 3 = 4/3 (R - S / 4)."""
    batch = at_proximal(ragged_batch)
    torch.testing.assert_close(gradient(rloo, batch).logp, 4 / 3 * gradient(reinforce, batch).logp)


@pytest.mark.checks("oracle", "rloo", by="advantages and gradient worked out by hand")
def test_rloo_by_hand():
    """Rewards 1, 0, 0, 2: the others' means are 2/3, 1, 1, 1/3."""
    batch = at_proximal(random_batch(0, groups=1, samples=4, positions=1, ragged=False))
    batch = batch.replace(reward=torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64))
    assert annotate(find("rloo"), batch).advantage.flatten().tolist() == pytest.approx([1 / 3, -1, -1, 5 / 3])
    assert gradient(find("rloo"), batch).logp.flatten().tolist() == pytest.approx([-1 / 12, 1 / 4, 1 / 4, -5 / 12])
