"""The value function's loss."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch

from upslope.objective.models.value import ValueFunction
from upslope.types import View


@pytest.mark.parametrize(("value", "loss"), [(0.4, 0.64), (1.2, 0.49), (-2.0, 10.24), (0.9, 0.49), (2.0, 0.64)])
def test_value_clipping_by_hand(value: float, loss: float):
    """V_old = 0, clip 0.5, return 1.2: V = 1.2 is right, but a step may only reach 0.5, so it costs 0.7^2 all the same."""
    view = View(torch.zeros(1, 1), value=torch.zeros(1, 1))
    batch = random_batch(0, groups=1, samples=1, positions=1, ragged=False)
    batch = batch.replace(
        current=View(view.logp, value=torch.tensor([[value]])), proximal=view, signal={"returns": torch.tensor([[1.2]])}
    )
    assert ValueFunction(weight=0.5, clip=0.5)(batch).item() == pytest.approx(0.25 * loss)
    assert ValueFunction(weight=0.5)(batch).item() == pytest.approx(0.25 * (value - 1.2) ** 2)
