"""BNPO's weights: rewards of another range are first brought to 0 and 1."""

from __future__ import annotations

import torch
from batches import random_batch

from upslope.objective.advantage.beta import BetaNormalised


def test_rewards_of_another_range_are_brought_to_zero_and_one():
    batch = random_batch(seed=2, groups=3, samples=4)
    batch = batch.replace(reward=torch.tensor([1.0, 0, 0, 0.5, 1, 1, 0, 1, 0, 0.25, 1, 0], dtype=torch.float64))
    wider = batch.replace(reward=4 * batch.reward - 1)
    plain = BetaNormalised()(batch)
    assert plain.any()
    torch.testing.assert_close(BetaNormalised(lowest=-1.0, highest=3.0)(wider), plain)
    # What lies beyond the range counts as its end.
    beyond = wider.replace(reward=torch.where(wider.reward == 3, 7.0, wider.reward))
    torch.testing.assert_close(BetaNormalised(lowest=-1.0, highest=3.0)(beyond), plain)
