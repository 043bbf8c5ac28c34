"""NGRPO's virtual samples in a group of one."""

from __future__ import annotations

import math

import pytest
import torch
from batches import random_batch

from upslope.objective.advantage.virtual import VirtualSamples


def test_a_group_of_one_is_compared_or_keeps_its_reward():
    batch = random_batch(seed=0, groups=1, samples=3, positions=1, ragged=False)
    batch = batch.replace(group=torch.tensor([0, 1, 1]), reward=torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64))
    # {1/2} and a virtual 1: mean 3/4, unbiased spread sqrt(1/8). {0, 0} and a virtual 1: -1/sqrt 3.
    compared = VirtualSamples(eps=0.0)(batch).flatten().tolist()
    assert compared == pytest.approx([-math.sqrt(0.5), -math.sqrt(1 / 3), -math.sqrt(1 / 3)])
    # The released code: mean 0 and spread 1 for a group of one, so (1/2 - 0) / (1 + eps); other groups as before.
    alone = VirtualSamples(eps=0.25, alone="reward")(batch).flatten().tolist()
    assert alone[0] == pytest.approx(0.4)
    assert alone[1:] == VirtualSamples(eps=0.25)(batch).flatten().tolist()[1:]
