"""DMPO: off it is its base, on an equal group it asks for uniform, and its term group by group."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.estimator import annotate, slice_scope
from upslope.objective.regularize.matching import GroupMatching
from upslope.types import Batch

dmpo, pure, grpo = find("dmpo"), find("dmpo-pure"), find("grpo")


@pytest.mark.checks("identity", "dmpo", "dmpo-pure")
def test_without_its_term_it_is_grpo(ragged_batch: Batch):
    off = dmpo.with_knobs({"regularize.weight": 0.0})
    base = grpo.derive(surrogate=dmpo.surrogate, aggregate=dmpo.aggregate, regularize=None)
    assert_same(gradient(off, ragged_batch), gradient(base, ragged_batch), exact=True)
    back = off.derive(surrogate=grpo.surrogate, aggregate=grpo.aggregate)
    assert_same(gradient(back, ragged_batch), gradient(grpo.derive(regularize=None), ragged_batch), exact=True)
    alone = gradient(pure, ragged_batch).logp + gradient(off, ragged_batch).logp
    torch.testing.assert_close(gradient(dmpo, ragged_batch).logp, alone)


def _by_group(batch: Batch, advantage: Tensor, part: GroupMatching) -> Tensor:
    """The term as the paper writes it, with a loop over groups."""
    distances = []
    for name in batch.group.unique():
        rows = ((batch.group == name) & (batch.lengths() > 0)).nonzero().squeeze(1)
        likelihood = (batch.current.logp * batch.sampled)[rows].sum(1) / batch.lengths()[rows]
        given = (advantage * batch.sampled)[rows].sum(1) / batch.lengths()[rows]
        policy, target = likelihood.softmax(0), (given / part.temperature).softmax(0)
        middle = (policy + target) / 2
        distance = {
            "square": (target - policy).square().mean(),
            "forward-kl": (target * (target / policy).log()).sum(),
            "jensen-shannon": ((policy * (policy / middle).log()).sum() + (target * (target / middle).log()).sum()) / 2,
        }[part.divergence]
        flat = bool(given.max() - given.min() <= 1e-5)
        distances.append(distance * (0.0 if flat and part.skip_flat else 1.0))
    return part.weight * torch.stack(distances).mean()


@pytest.mark.checks("oracle", "dmpo", "dmpo-pure", by="torch.softmax, group by group")
@pytest.mark.parametrize("skip_flat", [False, True])
@pytest.mark.parametrize("divergence", ["square", "forward-kl", "jensen-shannon"])
def test_the_term_group_by_group(divergence: str, skip_flat: bool):
    batch = random_batch(seed=3, groups=3, samples=4, empty_rows=1)
    reward = batch.reward.clone()
    reward[4:8] = 1.0
    batch = batch.replace(reward=reward)
    part = GroupMatching(weight=1.7, temperature=0.8, divergence=divergence, skip_flat=skip_flat)
    method = pure.derive(regularize=part)
    expected = _by_group(batch, annotate(method, batch).advantage, part)
    (slope,) = torch.autograd.grad(expected, batch.current.logp)
    found = gradient(method, batch)
    torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.logp, slope, rtol=1e-9, atol=1e-12)
    assert bool(found.logp[4:8].any()) != skip_flat


@pytest.mark.checks("oracle", "dmpo", "dmpo-pure", by="hand-worked numbers")
def test_two_answers_by_hand():
    # One token each, probabilities 0.3 and 0.1: P = (3/4, 1/4). Equal rewards: Q = (1/2, 1/2), (1/4)² twice, mean 1/16.
    batch = random_batch(seed=0, groups=1, samples=2, positions=1, ragged=False)
    batch = batch.replace(reward=torch.ones(2, dtype=torch.float64))
    batch = replace_view(batch, "current", logp=torch.tensor([[0.3], [0.1]], dtype=torch.float64).log())
    found = gradient(pure, batch)
    assert found.loss.item() == pytest.approx(1 / 16)
    # dD/dl = (P_1 - Q_1) P_1 P_2 · 2 = 0.25 · 3/16 · 2 = 0.09375 and its opposite: towards uniform.
    assert found.logp.flatten().tolist() == pytest.approx([0.09375, -0.09375])
    # A right and a wrong one: A = ±0.7071, Q = sigmoid(15 · 1.4142) = 1 to nine digits.
    batch = batch.replace(reward=torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert gradient(pure, batch).loss.item() == pytest.approx(0.75**2, rel=1e-5)


@pytest.mark.checks("identity", "dmpo", "dmpo-pure")
def test_an_equal_group_is_pushed_to_uniform_unless_skipped():
    batch = random_batch(seed=0, groups=2, samples=4)
    batch = batch.replace(reward=torch.ones(8, dtype=torch.float64))
    logp = batch.current.logp.detach().clone()
    start = gradient(pure, replace_view(batch, "current", logp=logp)).loss
    for _ in range(200):
        logp = logp - 20 * gradient(pure, replace_view(batch, "current", logp=logp)).logp
    assert gradient(pure, replace_view(batch, "current", logp=logp)).loss < 0.01 * start
    means = batch.row_mean(logp)[:4]
    assert float(means.max() - means.min()) < 0.15 < math.log(2)
    assert not gradient(pure.with_knobs({"regularize.skip_flat": True}), batch).logp.any()


@pytest.mark.checks("identity", "dmpo", "dmpo-pure")
def test_a_spoiled_decision_is_finite_and_silent(ragged_batch: Batch):
    assert slice_scope(dmpo) == slice_scope(pure) == "group"
    for method in (dmpo, pure):
        for bad in (torch.nan, torch.inf, -torch.inf):
            logp = ragged_batch.current.logp.detach().clone()
            logp[0, 0] = bad
            found, clean = gradient(method, replace_view(ragged_batch, "current", logp=logp)), gradient(method, ragged_batch)
            assert found.finite() and not found.logp[0, 0]
            torch.testing.assert_close(found.logp[4:], clean.logp[4:])  # other groups know nothing of it


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="weight is -1"):
        GroupMatching(weight=-1.0)
    with pytest.raises(MethodError, match="temperature is 0"):
        GroupMatching(temperature=0.0)
