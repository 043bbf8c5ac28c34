"""The covariance of advantage and log-probability where there is hardly anything to compare."""

from __future__ import annotations

import torch
from batches import random_batch

from upslope.objective.functional.covariance import covariance, share_count


def test_a_single_decision_differs_from_nothing():
    batch = random_batch(seed=1, groups=1, samples=2, positions=2, ragged=False)
    one = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    found = covariance(batch.replace(sampled=one, advantage=torch.full((2, 2), 0.7, dtype=torch.float64)), "current")
    assert found[0, 0] == 0 and found.flatten()[1:].isneginf().all()


def test_no_decision_has_none():
    batch = random_batch(seed=1, groups=1, samples=2, positions=2, ragged=False)
    none = torch.zeros(2, 2, dtype=torch.float64)
    assert covariance(batch.replace(sampled=none, advantage=none), "proximal").isneginf().all()


def test_a_share_of_decisions_is_rounded_down_and_at_least_one():
    batch = random_batch(seed=1, groups=1, samples=2, positions=5, ragged=False)
    assert [share_count(batch, share) for share in (0.0, 0.1, 0.3, 0.39, 0.7, 1.0)] == [1, 1, 3, 3, 7, 10]
