"""The baseline of each rank: with and without its division by the spread."""

from __future__ import annotations

import math

import pytest
import torch
from batches import random_batch

from upslope.objective.advantage.rank import RankBaseline
from upslope.types import Batch


def two_lists() -> Batch:
    """Two lists of three items of one decision each, with hits 1 0 1 and 0 1 0."""
    batch = random_batch(seed=0, groups=1, samples=2, positions=3, ragged=False)
    hits = torch.tensor([[1.0, 0, 1], [0, 1, 0]], dtype=torch.float64)
    return batch.replace(step_reward=hits, segment={"item": torch.arange(3).expand(2, 3).clone()}, label={})


def test_a_rank_is_only_centred_without_scale():
    # To go: 1 + 1/2, 1/2, 1/2 against d, d, 0 with d = 1/log2(3) = 0.63093. Half of the differences:
    second = 1 / math.log2(3)
    halves = [(1.5 - second) / 2, (0.5 - second) / 2, 0.25]
    found = RankBaseline(scale="none")(two_lists())
    assert found[0].tolist() == pytest.approx(halves)
    assert found[1].tolist() == pytest.approx([-half for half in halves])
    # Divided by the spread, each of two is at ±1/sqrt 2, whatever the difference.
    half = math.sqrt(0.5)
    assert RankBaseline(eps=0.0)(two_lists())[0].tolist() == pytest.approx([half, -half, half])


def test_a_rank_without_differences_is_silent_with_and_without_scale():
    batch = two_lists()
    batch = batch.replace(step_reward=torch.tensor([[1.0, 1, 0.1], [0, 1, 0.1]], dtype=torch.float64))
    for scale in ("std", "none"):
        found = RankBaseline(scale=scale)(batch)
        assert found[:, 0].all() and not found[:, 1:].any()
