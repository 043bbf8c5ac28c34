"""HAPO's objective: off it is DAPO, its advantages sum to zero over tokens, and its score, bounds and steps by hand."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline, RawReward
from upslope.objective.advantage.token_level import TokenLevelBaseline
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.surrogate.heterogeneous import EntropyAdaptiveClip, entropy_score
from upslope.types import Batch

hapo, dapo = find("hapo"), find("dapo")


@pytest.mark.checks("identity", "hapo")
def test_without_its_changes_and_with_equal_lengths_it_is_dapo():
    batch = random_batch(seed=1, groups=3, samples=4, ragged=False)
    off = hapo.with_knobs({"surrogate.widen": 0.0, "surrogate.redistribute": 0.0})
    parent = dapo.derive(surrogate=PessimisticClip(0.2, 0.2, dual=10.0), advantage=GroupBaseline(ddof=0))
    assert_same(gradient(off, batch), gradient(parent, batch))
    surrogate_only = off.derive(advantage=parent.advantage)
    assert_same(gradient(surrogate_only, batch), gradient(parent, batch), exact=True)


@pytest.mark.checks("identity", "hapo")
@pytest.mark.parametrize("seed", range(4))
def test_advantages_of_a_groups_tokens_sum_to_zero(seed: int):
    batch = random_batch(seed, groups=4, samples=5, empty_rows=1)
    found = TokenLevelBaseline(limit=math.inf)(batch)
    assert found.abs().max() > 0.1
    for name in batch.group.unique():
        assert found[batch.group == name].sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.checks("oracle", "hapo", by="hand-worked numbers")
def test_the_token_level_baseline_by_hand():
    # Lengths 1 and 3, rewards 1 and 0: mean 1/4, variance 3/16, spread 0.4330; A = 1.7321 and -0.5774.
    batch = _lengths([1, 3], [1.0, 0.0])
    found = batch.row_mean(TokenLevelBaseline(eps=0.0)(batch))
    assert found.tolist() == pytest.approx([math.sqrt(3), -1 / math.sqrt(3)])
    # Lengths 1 and 26: A of the short one would be sqrt(26) = 5.1 and reaches the limit: the group's own ±0.7071 instead.
    batch = _lengths([1, 26], [1.0, 0.0])
    assert batch.row_mean(TokenLevelBaseline(eps=0.0)(batch)).tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert batch.row_mean(TokenLevelBaseline(limit=6.0, eps=0.0)(batch))[0].item() == pytest.approx(math.sqrt(26))


def _lengths(lengths: list[int], rewards: list[float]) -> Batch:
    positions = max(lengths)
    batch = random_batch(seed=0, groups=1, samples=len(lengths), positions=positions, ragged=False)
    sampled = (torch.arange(positions) < torch.tensor(lengths).unsqueeze(1)).double()
    return batch.replace(sampled=sampled, reward=torch.tensor(rewards, dtype=torch.float64))


@pytest.mark.checks("oracle", "hapo", by="torch.quantile and hand-worked numbers")
def test_the_score_by_hand():
    # log H = 0, 1, 2, 3, 4, 6: the 0.8 quantile is 4; distances -4 .. 2, so scores -1, -3/4, -1/2, -1/4, 0, 1.
    entropy = torch.tensor([[0.0, 1, 2], [3, 4, 6]], dtype=torch.float64).exp()
    on = torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(
        entropy_score(entropy, on, 0.8), torch.tensor([[-1, -0.75, -0.5], [-0.25, 0, 1]], dtype=torch.float64)
    )
    random = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()
    middle = random.log().quantile(0.8)
    score = entropy_score(random, torch.ones(5, 7, dtype=torch.bool), 0.8)
    assert torch.equal(score > 0, random.log() > middle)
    assert score.max() == 1 and score.min() == -1
    assert not entropy_score(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), 0.8).any()
    assert not entropy_score(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool), 0.8).any()


LOGS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
"""Log-entropies whose scores are -1, -3/4, -1/2, -1/4, 0, 1."""


def _scored(ratio: float, advantage: float) -> Batch:
    """One answer of six tokens with these scores, one ratio and one advantage."""
    batch = random_batch(seed=0, groups=1, samples=1, positions=6, ragged=False)
    batch = replace_view(batch, "proximal", entropy=torch.tensor([LOGS], dtype=torch.float64).exp())
    batch = replace_view(batch, "current", logp=batch.proximal.logp + math.log(ratio))
    return batch.replace(reward=torch.tensor([advantage], dtype=torch.float64))


def _slopes(ratio: float, advantage: float, **fields) -> Tensor:
    method = hapo.derive(reward=None, filter=None, advantage=RawReward(), surrogate=EntropyAdaptiveClip(**fields))
    return -gradient(method, _scored(ratio, advantage)).logp[0] * 6


@pytest.mark.checks("oracle", "hapo", by="hand-worked numbers")
def test_bounds_and_steps_by_hand():
    def expect(found: Tensor, numbers: list[float]) -> None:
        assert found.tolist() == pytest.approx(numbers)

    # In the half band (0.9, 1.1) confident tokens learn with 1 + score, the most uncertain one as it is.
    expect(_slopes(1.0, 1.0), [0, 0.25, 0.5, 0.75, 1, 1])
    # 1.15 is outside the half band, inside the bounds: confident ones as they are, the uncertain one twice.
    expect(_slopes(1.15, 1.0), [1.15] * 5 + [2.3])
    # 1.3 is beyond 1.2 but within the uncertain token's 1.4.
    expect(_slopes(1.3, 1.0), [0] * 5 + [2.6])
    # Downwards, at 0.65: low is 0.4, 0.35, 0.3, 0.25, 0.2, 0.2, so that the first token alone may still fall.
    expect(_slopes(0.651, -1.0), [-0.651, -0.651, 0, 0, 0, 0])
    # Without the two knobs: PPO's clip.
    expect(_slopes(1.15, 1.0, widen=0.0, redistribute=0.0), [1.15] * 6)
    expect(_slopes(1.3, 1.0, widen=0.0, redistribute=0.0), [0] * 6)


@pytest.mark.checks("oracle", "hapo", by="hand-worked numbers")
def test_the_released_codes_variants_by_hand():
    # Half of the uncertain token's adapted 0.4 is 0.2: at 1.15 it is now inside the band and keeps its advantage.
    assert _slopes(1.15, 1.0, adapted_band=True).tolist() == pytest.approx([1.15] * 6)
    # Scores 1, 3/4, 1/2, 1/4, 0, 1: all but one count as uncertain, high is 0.4, 0.35, 0.3, 0.25, 0.2, 0.4.
    found = _slopes(1.31, 1.0, unsigned=True)
    assert found.tolist() == pytest.approx([1.31 * 2, 1.31 * 1.75, 0, 0, 0, 1.31 * 2])


@pytest.mark.checks("oracle", "hapo", by="hand-worked numbers")
def test_the_dual_clip_bounds_an_unlikely_bad_token():
    assert _slopes(4.0, -1.0, dual=3.0, widen=0.0, redistribute=0.0).tolist() == [0.0] * 6
    assert _slopes(2.0, -1.0, dual=3.0, widen=0.0, redistribute=0.0).tolist() == pytest.approx([-2.0] * 6)


def test_nonsense_is_refused():
    for wrong in ({"quantile": 1.5}, {"low": -0.1}, {"widen": -1.0}, {"redistribute": 1.5}):
        with pytest.raises(MethodError, match=next(iter(wrong))):
            EntropyAdaptiveClip(**wrong)
    with pytest.raises(MethodError, match="limit is 0"):
        TokenLevelBaseline(limit=0.0)
