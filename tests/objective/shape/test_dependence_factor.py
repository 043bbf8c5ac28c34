"""VPPO's factor by dependence, switched off."""

from __future__ import annotations

import torch
from batches import random_batch

from upslope.objective.shape.dependence import DependenceFactor


def test_at_one_it_needs_nothing_and_changes_nothing():
    batch = random_batch(seed=0)
    batch = batch.replace(advantage=batch.per_decision(batch.reward), reference={})
    off = DependenceFactor(least=1.0)
    assert not off.needs() and torch.equal(off(batch), batch.advantage)
