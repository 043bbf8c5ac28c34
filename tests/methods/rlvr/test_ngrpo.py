"""NGRPO's virtual sample: closed forms for groups that are all wrong or all right, and GRPO without it."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch
from exact_policy import ExactPolicy

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.virtual import VirtualSamples

ngrpo, grpo = find("ngrpo"), find("grpo")


def advantages(part: VirtualSamples, reward: torch.Tensor, samples: int) -> torch.Tensor:
    batch = random_batch(seed=0, groups=len(reward) // samples, samples=samples).replace(reward=reward)
    return part(batch).sum(1) / batch.lengths()


@pytest.mark.checks("identity", "ngrpo")
@pytest.mark.parametrize("ddof", [0, 1])
def test_without_virtual_samples_it_is_grpo(ddof: int):
    batch = random_batch(seed=1, groups=3, samples=5)
    plain = grpo.with_knobs({"advantage.ddof": ddof})
    assert torch.equal(VirtualSamples(virtual=0, ddof=ddof)(batch), plain.advantage(batch))
    reverted = ngrpo.derive(
        advantage=VirtualSamples(virtual=0, ddof=ddof),
        surrogate=grpo.surrogate,
        aggregate=grpo.aggregate,
        regularize=grpo.regularize,
    )
    assert_same(gradient(reverted, batch), gradient(plain, batch), exact=True)


@pytest.mark.checks("oracle", "ngrpo", by="closed forms")
@pytest.mark.parametrize("samples", [1, 4, 8])
def test_all_wrong_and_all_right(samples: int):
    wrong, right = torch.zeros(2 * samples).double(), torch.ones(2 * samples).double()
    unbiased, population = VirtualSamples(eps=0.0), VirtualSamples(eps=0.0, ddof=0)
    assert advantages(unbiased, wrong, samples).tolist() == pytest.approx([-1 / math.sqrt(samples + 1)] * 2 * samples)
    assert advantages(population, wrong, samples).tolist() == pytest.approx([-1 / math.sqrt(samples)] * 2 * samples)
    assert not advantages(VirtualSamples(), right, samples).any()


@pytest.mark.checks("oracle", "ngrpo", by="verl")
def test_it_is_verls_grpo_on_groups_with_the_sample_added():
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    batch = random_batch(seed=2, groups=3, samples=4)
    ours = ngrpo.advantage(batch).sum(1) / batch.lengths()
    reward = torch.cat([batch.reward, torch.ones(3).double()]).unsqueeze(1)
    index = torch.cat([batch.group, batch.group[::4]]).numpy()
    theirs, _ = compute_grpo_outcome_advantage(reward, torch.ones_like(reward), index)
    torch.testing.assert_close(ours, theirs[:12, 0], rtol=1e-6, atol=1e-6)


def test_a_right_answer_among_wrong_ones():
    # {1, 0, 0} and a virtual 1: mean 1/2, unbiased spread sqrt(1/3).
    found = advantages(VirtualSamples(eps=0.0), torch.tensor([1.0, 0.0, 0.0]).double(), 3)
    assert found.tolist() == pytest.approx([math.sqrt(3) / 2, -math.sqrt(3) / 2, -math.sqrt(3) / 2])


def test_all_wrong_groups_move_mass_away_where_grpo_stands_still():
    policy = ExactPolicy.random(seed=4)
    batch = policy.batch(policy.draw(16, seed=1), torch.zeros(len(policy.sequences()[0])).double(), samples=8)
    assert not policy.gradient(grpo.derive(regularize=None), batch).any()
    drawn = policy.gradient(ngrpo, batch)
    assert drawn.any()
    moved = ExactPolicy((policy.logits.detach() - 0.1 * drawn).requires_grad_())
    rows = (batch.sampled * batch.proximal.logp).sum(1)
    after = (batch.sampled * moved.logp(batch.action)).sum(1)
    assert after.mean() < rows.mean(), "what was tried and wrong becomes less likely"


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="-1"):
        VirtualSamples(virtual=-1)
