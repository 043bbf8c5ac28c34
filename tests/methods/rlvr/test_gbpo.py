"""GBPO: its target, its slope inside and outside the band, and the closed form it regresses to."""

from __future__ import annotations

import math

import pytest
import torch
from batches import gradient, random_batch, replace_view

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.median import MedianTarget, group_median
from upslope.objective.surrogate.bounded import BoundedRatio
from upslope.types import Batch

grpo, gbpo = find("grpo").derive(regularize=None), find("gbpo")


def _group(rewards: list[float], log_ratio: float = 0.0, seed: int = 0) -> Batch:
    """One group of answers of three tokens, all with this log-ratio."""
    batch = random_batch(seed, groups=1, samples=len(rewards), positions=3, ragged=False)
    batch = batch.replace(reward=torch.tensor(rewards, dtype=torch.float64))
    return replace_view(batch, "current", logp=batch.proximal.logp + log_ratio)


@pytest.mark.checks("identity", "gbpo")
@pytest.mark.parametrize("log_ratio", [-0.15, 0.0, 0.15])
def test_inside_the_band_with_mean_at_the_median_it_is_grpo(log_ratio: float):
    batch = _group([1.0, 0.0, 1.0, 0.0], log_ratio)
    ours, theirs = gradient(gbpo, batch).logp, gradient(grpo, batch).logp
    assert theirs.abs().min() > 0.01
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "gbpo")
@pytest.mark.parametrize("side", [1, -1])
def test_outside_on_the_far_side_grpo_is_flat_and_gbpo_leads_back(side: int):
    batch = _group([1.0, 0.0, 1.0, 0.0], side * 0.5)
    advantage = batch.row_mean(MedianTarget()(batch))
    far = (advantage.sign() == side).nonzero().squeeze(1)  # moved where the advantage pushes, and too far
    ours, theirs = gradient(gbpo, batch).logp, gradient(grpo, batch).logp
    assert not theirs[far].any()
    # Slope |A| back towards the band, times the ratio for the logarithm, over 4 answers of 3 tokens.
    expected = side * advantage[far].abs().unsqueeze(1) * math.exp(side * 0.5) / 12
    torch.testing.assert_close(ours[far], expected.expand(-1, 3))
    near = (advantage.sign() == -side).nonzero().squeeze(1)
    torch.testing.assert_close(ours[near], theirs[near])


@pytest.mark.checks("identity", "gbpo")
def test_the_majority_stays_and_only_the_minority_moves():
    batch = _group([1.0, 0.0, 0.0, 0.0])
    seen = MedianTarget().signals(batch, MedianTarget()(batch))["centred"]
    assert seen[0, 0] > 0 and not seen[1:].any()
    found = gradient(gbpo, batch).logp
    assert found[0].abs().min() > 0 and not found[1:].any(), "target 1 at ratio 1"
    drifted = gradient(gbpo, _group([1.0, 0.0, 0.0, 0.0], 0.1)).logp
    assert (drifted[1:] > 0).all(), "a majority that has grown is pulled back"


@pytest.mark.checks("oracle", "gbpo", by="hand-worked numbers")
def test_loss_and_gradient_by_hand():
    # R = 1, 0.25, 0: mean 5/12, median 1/4, squared deviations 0.34028 + 0.02778 + 0.17361 = 0.54167, spread sqrt(0.27083).
    method = gbpo.derive(surrogate=BoundedRatio(low=0.2, high=0.3, temperature=2.0), advantage=MedianTarget(eps=0.0))
    spread = math.sqrt(0.541666666666 / 2)
    weights = [abs(reward - 5 / 12) / spread for reward in (1.0, 0.25, 0.0)]
    targets = [0.8 + 0.5 / (1 + math.exp(-(reward - 0.25) / spread / 2)) for reward in (1.0, 0.25, 0.0)]
    assert targets == pytest.approx([1.13637, 1.05, 1.02012], abs=1e-5)
    found = gradient(method, _group([1.0, 0.25, 0.0], math.log(1.1)))
    assert found.loss.item() == pytest.approx(sum(w * abs(1.1 - t) for w, t in zip(weights, targets, strict=True)) / 3, rel=1e-6)
    signs = (-1, 1, 1)
    expected = [sign * weight * 1.1 / 9 for sign, weight in zip(signs, weights, strict=True)]
    assert found.logp[:, 0].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.checks("oracle", "gbpo", by="torch.quantile, group by group")
@pytest.mark.parametrize("seed", range(3))
def test_medians_of_groups_of_different_size(seed: int):
    batch = random_batch(seed, groups=4, samples=5).take_rows(torch.tensor([0, 1, 2, 3, 4, 19, 6, 5, 7, 8, 10, 12, 15]))
    value = torch.randn(batch.rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.stack([value[batch.group == name].quantile(0.5) for name in batch.group])
    torch.testing.assert_close(group_median(batch, value), expected)


@pytest.mark.checks("identity", "gbpo")
def test_the_closed_form_improves_by_the_band_times_the_mean_distance_from_the_median():
    random = torch.Generator().manual_seed(0)
    value = torch.randn(8, generator=random, dtype=torch.float64)
    chance = torch.full((8,), 1 / 8, dtype=torch.float64)
    median = value.quantile(0.5)
    target = 1 - 0.2 + 0.4 * ((value - median) / 1e-9).sigmoid()
    improved = chance * target
    torch.testing.assert_close(improved.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(improved @ value - chance @ value, 0.2 * (chance @ (value - median).abs()))


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="temperature is 0"):
        BoundedRatio(temperature=0.0)
    with pytest.raises(MethodError, match="low=-1"):
        BoundedRatio(low=-1.0)
    with pytest.raises(MethodError, match="centred"):
        gradient(gbpo.derive(advantage=grpo.advantage), random_batch(seed=0))
