"""Penalties on the reward: overlong answers, and distance from the start."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch

from upslope.errors import MethodError
from upslope.objective.reward import OverlongPenalty, StepKL
from upslope.types import Batch


def test_overlong_penalty_by_hand():
    """Limit 10, buffer a fifth of it: free up to 8 tokens, minus the penalty at 10, linear between."""
    sampled = (torch.arange(10) < torch.tensor([[1], [7], [8], [9], [10]])).double()
    batch = random_batch(0, groups=1, samples=5, positions=10).replace(sampled=sampled, reward=torch.ones(5).double())
    found = OverlongPenalty(penalty=2.0)(batch)
    assert found.reward.tolist() == pytest.approx([1, 1, 1, 0, -1])
    assert found.components["overlong"].tolist() == pytest.approx([0, 0, 0, -1, -2]) and "task" in found.components
    with pytest.raises(MethodError, match=r"set reward\.limit"):
        OverlongPenalty()(batch.replace(horizon=0))
    with pytest.raises(MethodError, match="buffer is 4096"):
        OverlongPenalty(buffer=4096)


def test_step_kl_by_hand(ragged_batch: Batch):
    """Each decision pays 0.1 (log pi - log pi_ref), and nobody else does."""
    distance = (ragged_batch.proximal.logp - ragged_batch.reference["start"].logp) * ragged_batch.sampled
    paid = StepKL(weight=0.1)(ragged_batch).step_reward - ragged_batch.step_reward
    torch.testing.assert_close(paid, -0.1 * distance)
    assert StepKL(weight=0.0)(ragged_batch) is ragged_batch and not StepKL(weight=0.0).needs()
