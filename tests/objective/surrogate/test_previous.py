"""The clip of rows of the step before: PIPO's two forms by hand, and what their notes say."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch, replace_view

from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate.previous import PreviousClip


@pytest.mark.parametrize(
    ("form", "loss", "high", "low"),
    [
        # Ratios 1.5, 1.5, 0.5, 0.5 with C = 2, -2, 2, -2 in a region from 0.9 to 1.3.
        ("pessimistic", [-2.6, 3.0, -1.0, 1.8], [True, False, False, False], [False, False, False, True]),
        # The released form: -min(r, 1.3) C, whatever the sign.
        ("upper", [-2.6, 2.6, -1.0, 1.0], [True, True, False, False], None),
    ],
)
def test_both_forms_by_hand(form: str, loss: list[float], high: list[bool], low: list[bool] | None):
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5]], dtype=torch.float64)
    batch = random_batch(seed=0, groups=1, samples=1, positions=4, ragged=False)
    batch = replace_view(batch, "current", logp=batch.proximal.logp + ratio.log())
    batch = batch.replace(advantage=torch.tensor([[2.0, -2.0, 2.0, -2.0]], dtype=torch.float64))
    found, notes = PreviousClip(low=0.1, high=0.3, form=form)(batch, TokenRatio()(batch))
    assert found[0].tolist() == pytest.approx(loss)
    assert notes["clipped_high"][0].tolist() == high
    assert (notes["clipped_low"][0].tolist() if low else notes.get("clipped_low")) == low
