"""Generalised advantage estimation: its ends, its scan, and the recursion as it is written."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch, replace_view

from upslope.objective.advantage import GAE
from upslope.objective.advantage.gae import backward_scan, paid
from upslope.types import Batch, Ended, View


def test_gae_special_cases(ragged_batch: Batch):
    batch = ragged_batch.replace(step_reward=None)
    zero = replace_view(batch, "proximal", value=torch.zeros_like(batch.sampled)).replace(bootstrap=None)
    torch.testing.assert_close(GAE(gamma=1.0, lam=1.0)(zero), batch.per_decision(batch.reward))
    # A row that ended by itself: lambda 1 is the return minus V, lambda 0 the one-step error.
    value = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    row = batch.take_rows(torch.tensor([0])).replace(
        sampled=torch.ones(1, 3).double(), ended=torch.tensor([[0, 0, 1]]), bootstrap=None, proximal=View(value, value=value)
    )
    discounted = row.reward * torch.tensor([0.81, 0.9, 1.0], dtype=torch.float64)
    torch.testing.assert_close(GAE(gamma=0.9, lam=1.0)(row), discounted - value, rtol=1e-6, atol=1e-6)
    errors = torch.stack([0.9 * value[0, 1] - value[0, 0], 0.9 * value[0, 2] - value[0, 1], row.reward[0] - value[0, 2]])
    torch.testing.assert_close(GAE(gamma=0.9, lam=0.0)(row)[0], errors)


@pytest.mark.parametrize("length", [1, 2, 5, 64, 257])
def test_the_scan_is_the_loop(length):
    random = torch.Generator().manual_seed(length)
    decay = torch.rand(3, length, generator=random, dtype=torch.float64)
    added = torch.randn(3, length, generator=random, dtype=torch.float64)
    expected, running = torch.zeros_like(added), torch.zeros(3, dtype=torch.float64)
    for position in reversed(range(length)):
        running = added[:, position] + decay[:, position] * running
        expected[:, position] = running
    torch.testing.assert_close(backward_scan(decay, added), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_gae_is_the_recursion_over_sampled_positions(seed):
    batch = random_batch(seed, empty_rows=1, positions=11)
    part = GAE(gamma=0.9, lam=0.8)
    value, reward = batch.proximal.value, paid(batch)
    expected = torch.zeros_like(value)
    for row in range(batch.rows):
        running = following = 0.0
        for position in reversed(range(value.shape[1])):
            if not batch.sampled[row, position]:
                continue
            ended = int(batch.ended[row, position])
            behind = following if ended == Ended.NO else 0.0 if ended == Ended.TERMINATED else float(batch.bootstrap[row, position])
            error = reward[row, position] + 0.9 * behind - value[row, position]
            running = error + (0.9 * 0.8 * running if ended == Ended.NO else 0.0)
            following = value[row, position]
            expected[row, position] = running
    torch.testing.assert_close(part(batch), expected, rtol=1e-10, atol=1e-12)


def test_a_scan_goes_along_the_last_axis_whatever_stands_before_it():
    decay, added = torch.full((3,), 0.5), torch.tensor([1.0, 2.0, 4.0])
    assert backward_scan(decay, added).tolist() == [3.0, 4.0, 4.0]
    assert backward_scan(decay.expand(2, 1, 3), added.expand(2, 1, 3)).tolist() == [[[3.0, 4.0, 4.0]]] * 2
