"""NFT: the first update is Dr.GRPO's or GRPO's, and later ones by hand."""

from __future__ import annotations

import math

import pytest
import torch
from batches import at_proximal, gradient, random_batch, replace_view
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.success import SuccessRate
from upslope.objective.aggregate import ConstantSum
from upslope.objective.estimator import annotate, begin_update
from upslope.objective.surrogate.negative_aware import NegativeAware
from upslope.types import Batch

nft, dr_grpo, grpo = find("nft"), find("dr-grpo"), find("grpo").derive(regularize=None)
odds = NegativeAware(weighting="odds")


def _right_or_wrong(policy: ExactPolicy) -> Tensor:
    return (policy.sequences()[0] == 1).any(1).double()


CASES = {
    "Dr.GRPO": (nft.derive(filter=None, aggregate=dr_grpo.aggregate), dr_grpo),
    "GRPO": (
        nft.derive(filter=None, aggregate=grpo.aggregate, surrogate=odds),
        grpo.derive(advantage=GroupBaseline(ddof=0, eps=0.0)),
    ),
}


@pytest.mark.checks("identity", "nft")
@pytest.mark.parametrize("case", CASES)
def test_the_first_update_is(case: str):
    ours, theirs = CASES[case]
    policy = ExactPolicy.random(seed=5)
    batch = policy.batch(policy.draw(64, seed=1), _right_or_wrong(policy), samples=8)
    assert 0 < batch.reward.mean() < 1
    expected = policy.gradient(theirs, batch)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(policy.gradient(ours, batch), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "nft")
def test_without_wrong_answers_it_is_weighted_imitation(ragged_batch: Batch):
    method = nft.derive(filter=None, surrogate=NegativeAware(negative=0.0))
    success = annotate(method, ragged_batch).signal["success"]
    right = (ragged_batch.reward > 0.5).double().unsqueeze(1) * (success < 0.98)
    expected = -(1 - success) * right * ragged_batch.sampled / 1000
    torch.testing.assert_close(gradient(method, ragged_batch).logp, expected)


def _two(log_ratio: float) -> Batch:
    """A right and a wrong answer of two tokens each, all with this log-ratio: p is a half."""
    batch = random_batch(seed=0, groups=1, samples=2, positions=2, ragged=False)
    batch = batch.replace(reward=torch.tensor([1.0, 0.0], dtype=torch.float64))
    return replace_view(batch, "current", logp=batch.proximal.logp + log_ratio)


@pytest.mark.checks("oracle", "nft", by="hand-worked numbers")
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 3.0])
def test_loss_and_gradient_by_hand(ratio: float):
    # p = 1/2, weight 1/2. Wrong: x = (1 - r/2) / (1/2) = 2 - r, so 1.5, 1, 0.5 and -1; bounded from below at 1.
    value = {0.5: 1.5, 1.0: 1.0, 1.5: 1.0, 3.0: 1.0}[ratio]
    found = gradient(nft, _two(math.log(ratio)))
    assert found.loss.item() == pytest.approx((-math.log(ratio) - math.log(value)) / 1000, abs=1e-12)
    # The slope of x in the log-ratio is -r: right -1/2, wrong 1/2 · r / max(x, 1).
    expected = [-0.5 / 1000, 0.5 * ratio / value / 1000]
    assert found.logp[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.checks("oracle", "nft", by="hand-worked numbers")
def test_a_lower_floor_pushes_harder():
    # r = 1.5: x = 0.5, and a floor of 0.1 leaves it there: the push doubles, the loss is -1/2 · log 0.5 on two tokens.
    method = nft.derive(surrogate=NegativeAware(floor=0.1))
    found = gradient(method, _two(math.log(1.5)))
    assert found.logp[1].tolist() == pytest.approx([0.5 * 1.5 / 0.5 / 1000] * 2)
    assert found.loss.item() == pytest.approx((-math.log(1.5) - math.log(0.5)) / 1000)


@pytest.mark.checks("oracle", "nft", by="hand-worked numbers")
def test_the_product_over_the_answer_by_hand():
    # P = 0.8² = 0.64: x = 1.36; right -1/2 · log P, wrong -1/2 · log x, once for the whole answer.
    method = nft.derive(surrogate=NegativeAware(unit="sequence"))
    found = gradient(method, _two(math.log(0.8)))
    assert found.loss.item() == pytest.approx(-0.5 * (math.log(0.64) + math.log(1.36)) / 1000)
    assert found.logp[1].tolist() == pytest.approx([0.5 * 0.64 / 1.36 / 1000] * 2)


@pytest.mark.checks("oracle", "nft", by="hand-worked numbers")
def test_the_success_rate_stays_off_its_ends():
    batch = random_batch(seed=0, groups=2, samples=100, ragged=False)
    reward = torch.zeros(200, dtype=torch.float64)
    reward[0] = 1.0
    reward[101:] = 1.0
    batch = batch.replace(reward=reward)
    part = SuccessRate()
    advantage = part(batch)
    assert part.signals(batch, advantage)["success"][[0, 199], 0].tolist() == [0.02, 0.98]
    assert advantage[[0, 1, 100, 101], 0].tolist() == pytest.approx([0.99, -0.01, -0.99, 0.01])


@pytest.mark.checks("identity", "nft")
def test_the_filter_drops_groups_all_right_or_all_wrong():
    batch = at_proximal(random_batch(seed=0))
    reward = torch.tensor([1.0] * 4 + [0.0] * 4 + [1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    found = gradient(nft, batch.replace(reward=reward, components={"task": reward}))
    assert not found.logp[:8].any() and found.logp[8:].any()


def test_a_sum_over_a_constant_counts_every_decision_alike(ragged_batch: Batch):
    method = nft.derive(filter=None, aggregate=ConstantSum(10.0))
    torch.testing.assert_close(begin_update(method, annotate(method, ragged_batch)).share, ragged_batch.sampled / 10)


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="floor is 0"):
        NegativeAware(floor=0.0)
    with pytest.raises(MethodError, match="negative is -1"):
        NegativeAware(negative=-1.0)
    with pytest.raises(MethodError, match="margin is 0"):
        SuccessRate(margin=0.0)
    with pytest.raises(MethodError, match="divisor is 0"):
        ConstantSum(0.0)
    with pytest.raises(MethodError, match="success"):
        gradient(nft.derive(advantage=grpo.advantage), random_batch(seed=0))
