"""The bounded ratio: its loss by hand, and where its notes say that the band was left."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch, replace_view

from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate.bounded import BoundedRatio


def test_loss_and_notes_by_hand():
    # Band from 0.9 to 1.3; above the median the target is 1.3, below 0.9, at it halfway, 1.1.
    ratio = torch.tensor([[1.4, 1.2, 0.8, 0.95, 1.4, 0.8]], dtype=torch.float64)
    advantage = torch.tensor([[2.0, 2.0, -1.0, -1.0, -1.0, 0.5]], dtype=torch.float64)
    centred = torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0, 0.0]], dtype=torch.float64)
    batch = random_batch(seed=0, groups=1, samples=1, positions=6, ragged=False)
    batch = replace_view(batch, "current", logp=batch.proximal.logp + ratio.log())
    batch = batch.replace(advantage=advantage, signal={"centred": centred})
    loss, notes = BoundedRatio(low=0.1, high=0.3)(batch, TokenRatio()(batch))
    assert loss[0].tolist() == pytest.approx([0.1 * 2, 0.1 * 2, 0.1, 0.05, 0.5, 0.3 * 0.5])
    # Left at the top with a good outcome, at the bottom with a bad one; what was left the wrong way is led back and not noted.
    assert notes["clipped_high"][0].tolist() == [True, False, False, False, False, False]
    assert notes["clipped_low"][0].tolist() == [False, False, True, False, False, False]
