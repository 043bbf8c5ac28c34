"""The gradient of an item's ratio where its decisions have different advantages."""

from __future__ import annotations

import pytest
import torch
from batches import at_proximal, gradient, random_batch

from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.base import Shape
from upslope.objective.ratio.segment import SegmentRatio
from upslope.types import Batch

rank = find("rank-grpo")


class Given(Shape):
    """Advantages 1, 2, -4 and 3 whatever was earned."""

    scope = "step"

    def __call__(self, batch: Batch):
        return torch.tensor([[1.0, 2.0, -4.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("gradient_of", "expected"),
    [
        # Items of three decisions and of one, in an answer of four: each decision by its own advantage, ...
        ("token", [-1 / 4, -2 / 4, 4 / 4, -3 / 4]),
        # ... or by the mean of its item's, (1 + 2 - 4) / 3 = -1/3: the released code differentiates the mean.
        ("segment", [1 / 12, 1 / 12, 1 / 12, -3 / 4]),
    ],
)
def test_by_its_own_advantage_or_by_its_items(gradient_of: str, expected: list[float]):
    batch = at_proximal(random_batch(seed=0, groups=1, samples=1, positions=4, ragged=False))
    batch = batch.replace(segment={"item": torch.tensor([[0, 0, 0, 1]])}, label={})
    method = rank.derive(regularize=None, advantage=RawReward(), shape=(Given(),), ratio=SegmentRatio(gradient=gradient_of))
    found = gradient(method, batch)
    assert found.logp[0].tolist() == pytest.approx(expected)
