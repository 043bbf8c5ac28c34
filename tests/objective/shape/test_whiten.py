"""Whitening: mean zero and spread one over what counts."""

from __future__ import annotations

import torch
from batches import random_batch

from upslope.objective.shape import Whiten


def test_whitening_by_hand():
    batch = random_batch(0, groups=1, samples=1, positions=4, ragged=False)
    batch = batch.replace(sampled=torch.tensor([[1.0, 1, 0, 1]]).double(), advantage=torch.tensor([[1.0, 2, 50, 3]]).double())
    assert Whiten(eps=0.0)(batch).tolist() == [[-1, 0, 0, 1]]
    assert not Whiten()(batch.replace(advantage=0.1 * batch.sampled)).any()
    alone = batch.replace(sampled=torch.tensor([[0.0, 1, 0, 0]]).double())
    assert torch.equal(Whiten()(alone), alone.advantage)


def test_whitening_sees_only_what_counts():
    batch = random_batch(1)
    batch = batch.replace(advantage=torch.where(batch.sampled > 0, batch.proximal.value, torch.nan))
    values = batch.advantage[batch.sampled > 0]
    whitened = Whiten()(batch)[batch.sampled > 0]
    torch.testing.assert_close(whitened, (values - values.mean()) / (values.std() + 1e-8))
