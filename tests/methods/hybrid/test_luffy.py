"""LUFFY: the demonstration in the group, and the bent probability it learns by."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient, random_batch
from oracles import assert_loss_and_gradient
from small_learner import SIZES, learner
from torch import Tensor

from upslope.methods import find
from upslope.objective.estimator import annotate
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.surrogate.off_policy import ShapedProbability
from upslope.types import Batch, Source

luffy, dr_grpo = find("luffy"), find("dr-grpo")


def shown_batch(seed: int) -> tuple[Batch, Tensor]:
    """A batch whose last row of each group is a demonstration that earned 1, and which rows these are."""
    batch = random_batch(seed, groups=3, samples=4)
    shown = torch.arange(batch.rows) % 4 == 3
    reward = torch.where(shown, 1.0, batch.reward)
    source = torch.where(shown, int(Source.DEMONSTRATED), int(Source.FRESH))
    return batch.replace(reward=reward, components={"task": reward}, label={**batch.label, "source": source}), shown


@pytest.mark.checks("identity", "luffy")
def test_without_demonstrations_it_is_dr_grpo(ragged_batch: Batch):
    reverted = luffy.with_knobs({"surrogate.own": "PessimisticClip"}).derive(regularize=None, data=None)
    assert reverted.surrogate.own == PessimisticClip()
    assert_same(gradient(reverted, ragged_batch), gradient(dr_grpo, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "luffy", by="hand-worked numbers")
def test_the_bent_probability_by_hand():
    """f(p) = p / (p + 0.1): 0.9 -> 0.9, 0.1 -> 0.5, 0.01 -> 1/11. Gradient in log p 0.1 p / (p + 0.1)^2: 0.09, 0.25, 0.0826."""
    batch = random_batch(seed=0, groups=1, samples=1, positions=4, ragged=False)
    logp = torch.tensor([[0.9, 0.1, 0.01, 0.0]], dtype=torch.float64).log().requires_grad_()
    batch = batch.replace(current=type(batch.current)(logp), advantage=torch.full((1, 4), 2.0, dtype=torch.float64))
    loss, _ = ShapedProbability()(batch, ())
    assert loss[0].tolist() == pytest.approx([-1.8, -1.0, -2 / 11, 0.0])
    (grad,) = torch.autograd.grad(loss.sum(), logp)
    assert grad[0].tolist() == pytest.approx([-0.18, -0.5, -2 * 0.001 / 0.0121, 0.0])
    plain, _ = ShapedProbability(form="plain")(batch, ())
    assert plain[0].tolist() == pytest.approx([-1.8, -0.2, -0.02, 0.0])


def released(batch: Batch, advantage: Tensor, shown: Tensor, entropy: float) -> tuple[Tensor, Tensor, Tensor]:
    """The released loss, written down again: ratios of samples, f of demonstrations, all over the constant length."""
    logp, entropies = (column.detach().clone().requires_grad_() for column in (batch.current.logp, batch.current.entropy))
    ratio, chance = (logp - batch.proximal.logp).exp(), logp.exp()
    bent = torch.where(shown.unsqueeze(1), chance / (chance + 0.1), ratio)
    rows = (batch.lengths() > 0).sum()
    loss = ((-advantage * bent - entropy * entropies) * batch.sampled).sum() / batch.horizon / rows
    return loss, logp, entropies


@pytest.mark.checks("oracle", "luffy", by="the released loss, written down again")
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_are_the_released_ones(seed: int):
    batch, shown = shown_batch(seed)
    index = batch.group_index()[0]
    mean = torch.stack([batch.reward[index == each].mean() for each in range(3)])[index]
    loss, leaf, entropies = released(batch, (batch.reward - mean).unsqueeze(1), shown, 0.001)
    ours = gradient(luffy, batch)
    torch.testing.assert_close(ours.entropy, torch.autograd.grad(loss, entropies, retain_graph=True)[0])
    assert_loss_and_gradient(ours, loss, leaf)


def test_all_wrong_samples_learn_from_the_demonstration_and_all_right_ones_do_not():
    batch, shown = shown_batch(seed=1)
    for earned, learns in ((0.0, True), (1.0, False)):
        reward = torch.where(shown, 1.0, torch.full_like(batch.reward, earned))
        found = annotate(luffy, batch.replace(reward=reward, components={"task": reward})).advantage
        assert bool((found[shown] > 0).any()) is learns and bool((found[~shown] < 0).any()) is learns


def test_the_demonstration_joins_its_group_and_no_ratio_of_it_is_clipped():
    made = learner(luffy, SIZES)
    told = made.step(1)
    assert made.last.rows == 20 and (made.last.label["source"] == Source.DEMONSTRATED).sum() == 4
    assert told["log_ratio"] == 0 and "clip_fraction" not in told
