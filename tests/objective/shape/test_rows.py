"""Whitening by rows: a batch without a single position."""

from __future__ import annotations

import torch

from upslope.objective.shape.rows import WhitenRows
from upslope.types import Batch, View


def test_a_batch_without_positions_stays_empty():
    nothing = torch.zeros(2, 0)
    numbers = torch.zeros(2, dtype=torch.int64)
    batch = Batch(sampled=nothing, reward=torch.ones(2), group=numbers, task=numbers, behavior=View(nothing), advantage=nothing)
    assert WhitenRows()(batch).shape == (2, 0)
