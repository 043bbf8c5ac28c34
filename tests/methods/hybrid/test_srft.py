"""SRFT: imitation by certainty, reinforcement by doubt."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch
from oracles import assert_loss_and_gradient
from small_learner import SIZES, learner
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.entropy_signed import EntropySigned
from upslope.objective.data.ground_truth import GroundTruth
from upslope.objective.weight.certainty import CertaintyWeight
from upslope.types import Batch, Source

srft, luffy = find("srft"), find("luffy")
term = dict(srft.terms)["imitation"].as_method("imitation", srft)


def shown_batch(seed: int) -> tuple[Batch, Tensor]:
    batch = random_batch(seed, groups=3, samples=4)
    shown = torch.arange(batch.rows) % 4 == 3
    reward = torch.where(shown, 1.0, (batch.reward > 0).double())
    source = torch.where(shown, int(Source.DEMONSTRATED), int(Source.FRESH))
    return batch.replace(reward=reward, components={"task": reward}, label={**batch.label, "source": source}), shown


@pytest.mark.checks("identity", "srft")
def test_with_its_changes_taken_back_it_is_luffy():
    batch, _ = shown_batch(seed=0)
    reverted = srft.derive(data=GroundTruth(), advantage=luffy.advantage, ratio=luffy.ratio, surrogate=luffy.surrogate, terms=None)
    assert_same(gradient(reverted, batch), gradient(luffy, batch), exact=True)


@pytest.mark.checks("oracle", "srft", by="hand-worked numbers")
def test_the_advantage_by_hand():
    """Mean entropy 1: right 0.1 e = 0.27183, wrong -1. The demonstration: reward 1 over a group of 1, 0, 1, mean 2/3, so 1/3."""
    batch = random_batch(seed=0, groups=1, samples=3, positions=2, ragged=False)
    entropy = torch.tensor([[0.5, 1.5], [0.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    proximal = type(batch.current)(batch.proximal.logp, entropy)
    source = torch.tensor([0, 0, int(Source.DEMONSTRATED)])
    batch = batch.replace(reward=torch.tensor([1.0, 0.0, 1.0]).double(), proximal=proximal, label={"source": source})
    assert EntropySigned()(batch)[:, 0].tolist() == pytest.approx([0.1 * math.e, -1.0, 1 / 3])
    assert CertaintyWeight()(batch)[:, 1].tolist() == pytest.approx([0.5 / math.e, 0.5, 0.5 * math.exp(-9)])


@pytest.mark.checks("oracle", "srft", by="the released loss, written down again")
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_are_the_released_ones(seed: int):
    """Samples: -A log p with A = 0.1 e^H or -1. Demonstrations: -(R - mean) p, and imitated with half of e^-H."""
    batch, shown = shown_batch(seed)
    logp = batch.current.logp.detach().clone().requires_grad_()
    doubt = (batch.proximal.entropy * batch.sampled).sum(1, keepdim=True) / batch.sampled.sum(1, keepdim=True)
    right = (batch.reward == 1).unsqueeze(1)
    index = batch.group_index()[0]
    off = (batch.reward - torch.stack([batch.reward[index == each].mean() for each in range(3)])[index]).unsqueeze(1)
    per_token = torch.where(shown.unsqueeze(1), -off * logp.exp(), -torch.where(right, 0.1 * doubt.exp(), -1.0) * logp)
    loss = (per_token * batch.sampled).sum() / batch.horizon / batch.rows
    assert_loss_and_gradient(gradient(srft.derive(regularize=None), batch), loss, logp)
    own = batch.sampled * shown.unsqueeze(1)
    imitated = (-0.5 * (-doubt).exp() * logp * own).sum() / own.sum()
    ours = gradient(term, batch.take_rows(shown))
    (grad,) = torch.autograd.grad(imitated, logp)
    torch.testing.assert_close(ours.loss, imitated.detach())
    torch.testing.assert_close(ours.logp, grad[shown])


def test_every_group_imitates_and_reinforces_its_demonstration():
    made = learner(srft, SIZES)
    told = made.step(1)
    assert made.last.rows == 20 and made.last.aside["demonstration"].rows == 4 and told["gated_groups"] == 1.0
    assert told["imitation_loss"] > 0 and (made.last.signal["gate"] == 1).all()


def test_without_the_entropy_both_parts_say_what_they_lack():
    batch, _ = shown_batch(seed=0)
    for part in (EntropySigned(), CertaintyWeight()):
        with pytest.raises(MethodError, match=type(part).__name__):
            part(batch.replace(proximal=None))
