"""What a bounded ratio calls clipped: beyond a bound, on the side where the advantage pushes."""

from __future__ import annotations

import torch
from batches import random_batch

from upslope.objective.base import Branch
from upslope.objective.surrogate.bounded import BoundedRatio


def test_neither_a_bound_itself_nor_a_decision_without_advantage_is_clipped():
    ratio = torch.tensor([[1.5, 1.51, 2.0, 2.0, 0.5, 0.49, 0.1, 0.1]], dtype=torch.float64)
    advantage = torch.tensor([[1.0, 1.0, 0.0, -1.0, -1.0, -1.0, 0.0, 1.0]], dtype=torch.float64)
    batch = random_batch(seed=1, groups=1, samples=1, positions=8, ragged=False)
    batch = batch.replace(advantage=advantage, signal={"centred": advantage})
    _, notes = BoundedRatio(low=0.5, high=0.5)(batch, (Branch("token", ratio.log(), ratio),))
    assert notes["clipped_high"].nonzero()[:, 1].tolist() == [1] and notes["clipped_low"].nonzero()[:, 1].tolist() == [5]
