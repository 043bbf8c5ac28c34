"""BPO: its slope inside and outside the band, the median it learns, and the closed form it regresses to."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

import upslope as up
from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.centred import CentredGAE
from upslope.objective.advantage.gae import GAE
from upslope.objective.models.median import MedianFunction
from upslope.objective.surrogate.bounded import BoundedRatio
from upslope.objective.surrogate.fitted import FittedRatio
from upslope.types import Batch, Ended, View

bpo = find("bpo")
ppo = find("ppo").derive(shape=None, models=bpo.models)
"""With what is not the surrogate's taken from BPO."""


@pytest.mark.checks("identity", "bpo")
@pytest.mark.parametrize("seed", range(3))
def test_inside_the_band_with_the_value_as_centre_it_is_ppo(seed: int):
    batch = random_batch(seed, groups=3, samples=4, drift=0.03)
    sharp = bpo.derive(advantage=CentredGAE(centre="value"), surrogate=BoundedRatio(0.3, 0.3, temperature=1e-12))
    ours, theirs = gradient(sharp, batch), gradient(ppo, batch)
    assert theirs.logp.abs().max() > 0.01
    for name in ("logp", "entropy", "value"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "bpo")
@pytest.mark.parametrize("side", [1, -1])
def test_outside_on_the_far_side_ppo_is_flat_and_bpo_leads_back(side: int):
    batch = random_batch(seed=1, groups=2, samples=3, ragged=False)
    batch = replace_view(batch, "current", logp=batch.proximal.logp + side * 0.6)
    sharp = bpo.derive(advantage=CentredGAE(centre="value"), surrogate=BoundedRatio(0.3, 0.3, temperature=1e-12))
    advantage = GAE()(batch)
    far = advantage.sign() == side
    ours, theirs = gradient(sharp, batch).logp, gradient(ppo, batch).logp
    assert far.any() and not theirs[far].any()
    # Slope |A| back towards the band, times the ratio for the logarithm, over 48 decisions.
    torch.testing.assert_close(ours[far], side * advantage[far].abs() * math.exp(side * 0.6) / 48)
    torch.testing.assert_close(ours[~far], theirs[~far])


def _decision(reward: float, value: float, median: float, ratio: float) -> Batch:
    """One decision that ended: Q is the reward."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return Batch(
        sampled=one,
        reward=torch.tensor([reward], dtype=torch.float64),
        group=torch.zeros(1, dtype=torch.int64),
        task=torch.zeros(1, dtype=torch.int64),
        behavior=View(-one),
        proximal=View.of({"logp": -one, "value": value * one, "median": median * one}),
        current=View.of({"logp": -one + math.log(ratio), "entropy": one, "value": 0.5 * one, "median": 0.25 * one}),
        ended=torch.tensor([[int(Ended.TERMINATED)]], dtype=torch.int8),
    )


@pytest.mark.checks("oracle", "bpo", by="hand-worked numbers")
def test_loss_and_gradients_by_hand():
    # Q = 2, V = 1.5, u = 2.4: weight 0.5, centred -0.4, target 0.7 + 0.6 / (1 + e^0.8) = 0.8860155 at temperature 0.5.
    method = bpo.derive(advantage=CentredGAE(), surrogate=BoundedRatio(0.3, 0.3, temperature=0.5), regularize=None)
    found = gradient(method, _decision(reward=2.0, value=1.5, median=2.4, ratio=1.1))
    target = 0.7 + 0.6 / (1 + math.exp(0.8))
    assert target == pytest.approx(0.8860155, abs=1e-6)
    # The value is at 0.5 and the median at 0.25, 1.5 and 1.75 below Q: 0.5 * 1.5^2 and 0.5 * (softplus(1.75) - 0.875).
    fit = 0.5 * 1.5**2 + 0.5 * (math.log1p(math.exp(1.75)) - 0.875)
    assert found.loss.item() == pytest.approx(0.5 * (1.1 - target) + fit, rel=1e-9)
    assert found.logp.item() == pytest.approx(0.5 * 1.1, rel=1e-9), "above its target, it goes down although Q > V"
    assert found.value.item() == pytest.approx(-1.5, rel=1e-9)
    assert found.more["median"].item() == pytest.approx(-0.5 * (1 / (1 + math.exp(-1.75)) - 0.5), rel=1e-9)


@pytest.mark.checks("oracle", "bpo", by="hand-worked numbers")
def test_the_heads_being_fitted_set_weight_and_target():
    # Q = 2 with V at 0.5 and u at 0.25 now: weight 1.5, target 0.7 + 0.6 / (1 + e^-3.5) = 1.2824; what was before is not read.
    method = bpo.derive(surrogate=FittedRatio(0.3, 0.3, temperature=0.5), models={}, regularize=None)
    found = gradient(method, _decision(reward=2.0, value=1.5, median=9.0, ratio=1.1))
    target = 0.7 + 0.6 / (1 + math.exp(-3.5))
    assert found.loss.item() == pytest.approx(1.5 * (target - 1.1), rel=1e-9)
    assert found.logp.item() == pytest.approx(-1.5 * 1.1, rel=1e-9)
    assert not found.value.any() and not found.more["median"].any(), "the heads learn from their own losses alone"
    by_value = bpo.derive(surrogate=FittedRatio(0.3, 0.3, temperature=0.5, centre="value"), models={}, regularize=None)
    target = 0.7 + 0.6 / (1 + math.exp(-3.0))
    assert gradient(by_value, _decision(2.0, 1.5, 9.0, 1.1)).loss.item() == pytest.approx(1.5 * (target - 1.1), rel=1e-9)


@pytest.mark.checks("identity", "bpo")
def test_before_the_heads_move_both_ways_of_taking_them_agree():
    batch = random_batch(seed=6)
    batch = replace_view(batch, "current", value=batch.proximal.value, median=batch.proximal["median"])
    before = bpo.derive(advantage=CentredGAE(), surrogate=BoundedRatio(0.3, 0.3, temperature=1e-3))
    assert_same(gradient(bpo, batch), gradient(before, batch))


def _fitted(returns: Tensor, softness: float) -> float:
    """Where the loss of the median function is smallest, by bisection on its slope."""
    model = MedianFunction(weight=1.0, softness=softness)
    low, high = float(returns.min()), float(returns.max())
    for _ in range(80):
        middle = torch.full((1, len(returns)), (low + high) / 2, dtype=torch.float64, requires_grad=True)
        batch = random_batch(0, 1, 1, positions=len(returns), ragged=False)
        batch = replace_view(batch, "current", median=middle).replace(signal={"returns": returns.unsqueeze(0)})
        (slope,) = torch.autograd.grad(model(batch).sum(), middle)
        low, high = (low, (low + high) / 2) if slope.sum() > 0 else ((low + high) / 2, high)
    return low


@pytest.mark.checks("identity", "bpo")
def test_the_median_head_goes_from_the_median_to_the_mean():
    returns = torch.tensor([0.0, 1.0, 2.0, 10.0, 30.0], dtype=torch.float64)
    assert _fitted(returns, softness=0.01) == pytest.approx(2.0, abs=0.05)
    assert _fitted(returns, softness=1e5) == pytest.approx(returns.mean().item(), abs=0.01)
    between = _fitted(returns, softness=1.0)
    assert float((returns - between).sigmoid().mean()) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.checks("identity", "bpo")
def test_the_closed_form_improves_a_decision_process_by_what_the_paper_says():
    random = torch.Generator().manual_seed(3)
    states, actions, discount, band = 5, 4, 0.9, 0.3
    reward = torch.randn(states, actions, generator=random, dtype=torch.float64)
    moves = torch.rand(states, actions, states, generator=random, dtype=torch.float64)
    moves = moves / moves.sum(-1, keepdim=True)
    start = torch.full((states,), 1 / states, dtype=torch.float64)
    old = torch.full((states, actions), 1 / actions, dtype=torch.float64)  # four equal actions: the median parts them in halves

    def values(policy: Tensor) -> Tensor:
        step = torch.einsum("sa,sat->st", policy, moves)
        return torch.linalg.solve(torch.eye(states, dtype=torch.float64) - discount * step, (policy * reward).sum(1))

    quality = reward + discount * moves @ values(old)
    median = quality.quantile(0.5, 1, keepdim=True)
    new = old * (1 + band * (quality - median).sign())
    torch.testing.assert_close(new.sum(1), torch.ones(states, dtype=torch.float64))
    step = torch.einsum("sa,sat->st", new, moves)
    visits = torch.linalg.solve((torch.eye(states, dtype=torch.float64) - discount * step).T, start)
    expected = band * (visits.unsqueeze(1) * old * (quality - median).abs()).sum()
    torch.testing.assert_close(start @ values(new) - start @ values(old), expected)
    target = 1 - band + 2 * band * ((quality - median) / 1e-9).sigmoid()
    torch.testing.assert_close(old * target, new)


@pytest.mark.checks("identity", "bpo")
def test_without_its_surrogate_it_is_ppo():
    batch = random_batch(seed=4)
    reverted = bpo.derive(advantage=GAE(), surrogate=ppo.surrogate)
    assert_same(gradient(reverted, batch), gradient(ppo, batch), exact=True)


@pytest.mark.checks("learns", "bpo")
def test_it_runs_on_text_too(tmp_path):
    sizes = {"steps": 2, "tasks_per_step": 4, "passes": 2, "warm_start": 0.0, "eval_problems": 4}
    run = up.train("bpo", "reverse:length=2", model="tiny:layers=1,width=32", **sizes, out=tmp_path / "run")
    assert run.policy.heads.keys() == {"median", "value"}
    assert run.components.method.advantage.gamma == 1.0 and run.components.method.models[0][1].lr_scale == 10.0
    assert all(record["grad_norm"] > 0 for record in run.metrics)


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="softness is 0"):
        MedianFunction(softness=0.0)
    with pytest.raises(MethodError, match="median"):
        gradient(bpo, replace_view(random_batch(seed=0), "current", median=None))
    with pytest.raises(MethodError, match="head 'median'"):
        before = bpo.derive(advantage=CentredGAE(), surrogate=BoundedRatio())
        gradient(before, replace_view(random_batch(seed=0), "proximal", median=None))
