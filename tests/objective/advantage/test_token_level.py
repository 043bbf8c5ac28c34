"""A baseline over tokens: equal rewards are no signal, whatever rounding makes of their mean."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch

from upslope.objective.advantage.token_level import TokenLevelBaseline


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3])
def test_equal_rewards_are_exactly_no_signal(reward: float):
    for seed in range(4):
        batch = random_batch(seed, groups=2, samples=7, dtype=torch.float32)
        same = batch.replace(reward=torch.full_like(batch.reward, reward))
        assert not TokenLevelBaseline(limit=torch.inf)(same).any()
