"""HAPO's score: how the quantile falls between two tokens, and whose entropy it is."""

from __future__ import annotations

import math

import pytest
import torch
from batches import CUTS, assert_same, gradient, random_batch, replace_view

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.estimator import early_columns
from upslope.objective.surrogate.heterogeneous import EntropyAdaptiveClip, entropy_score
from upslope.types import Batch

hapo = find("hapo")


@pytest.mark.parametrize(
    ("interpolation", "expected"),
    [
        # log H = 0, 1, 2, 6: the 0.8 quantile is at place 2.4, 2 + 0.4 * 4 = 3.6; distances -3.6, -2.6, -1.6, 2.4.
        ("linear", [-1, -2.6 / 3.6, -1.6 / 3.6, 1]),
        # The nearest is 2; distances -2, -1, 0, 4.
        ("nearest", [-1, -0.5, 0, 1]),
    ],
)
def test_the_quantile_between_two_tokens(interpolation: str, expected: list[float]):
    entropy = torch.tensor([[0.0, 1, 2, 6]], dtype=torch.float64).exp()
    found = entropy_score(entropy, torch.ones(1, 4, dtype=torch.bool), 0.8, interpolation)
    assert found[0].tolist() == pytest.approx(expected)


def test_the_nearest_of_two_equally_near_ones_has_the_even_number():
    entropy = torch.tensor([[0.0, 1]], dtype=torch.float64).exp()
    assert entropy_score(entropy, torch.ones(1, 2, dtype=torch.bool), 0.5, "nearest")[0].tolist() == pytest.approx([0, 1])


def six_tokens() -> Batch:
    """One answer with ratio one; log-entropies 0, 1, 2, 3, 4, 6 for the current policy and turned round for the proximal one."""
    logs = torch.tensor([[0.0, 1, 2, 3, 4, 6]], dtype=torch.float64)
    batch = random_batch(seed=0, groups=1, samples=1, positions=6, ragged=False)
    batch = replace_view(batch, "proximal", entropy=logs.flip(1).exp())
    batch = replace_view(batch, "current", logp=batch.proximal.logp.clone(), entropy=logs.exp())
    return batch.replace(reward=torch.ones(1, dtype=torch.float64))


def test_the_entropy_of_the_policy_that_learns():
    # Scores -1, -3/4, -1/2, -1/4, 0, 1; inside the band confident tokens learn with 1 + score, the uncertain one as it is.
    method = hapo.derive(reward=None, filter=None, advantage=RawReward(), surrogate=EntropyAdaptiveClip(source="current"))
    steps = [0, 0.25, 0.5, 0.75, 1, 1]
    assert (-6 * gradient(method, six_tokens()).logp[0]).tolist() == pytest.approx(steps)
    before = method.derive(surrogate=EntropyAdaptiveClip())
    assert (-6 * gradient(before, six_tokens()).logp[0]).tolist() == pytest.approx(steps[::-1])
    assert early_columns(method) == {"entropy"} and not early_columns(before)


@pytest.mark.parametrize("how", CUTS)
def test_the_current_entropy_is_seen_whole_however_the_update_is_cut(ragged_batch: Batch, how: str):
    method = hapo.derive(surrogate=EntropyAdaptiveClip(source="current", interpolation="nearest"))
    found = gradient(method, ragged_batch)
    assert_same(gradient(method, ragged_batch, how), found)
    assert not found.entropy.any(), "the score carries no gradient"


def test_a_batch_without_that_entropy_is_refused():
    batch = replace_view(random_batch(seed=0), "current", entropy=None)
    with pytest.raises(MethodError, match="entropy of the current policy"):
        EntropyAdaptiveClip(source="current").prepare(batch)
    assert math.isfinite(EntropyAdaptiveClip().prepare(batch).sum().item())
