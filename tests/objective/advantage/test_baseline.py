"""Baselines that remember."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch

from upslope.methods import find
from upslope.objective.advantage import MovingBaseline
from upslope.objective.estimator import annotate, bind, stateful


def test_moving_baseline_reads_its_state_and_writes_it_after_the_step():
    method = find("reinforce").derive(advantage=MovingBaseline(decay=0.9))
    assert list(stateful(method)) == ["advantage"]
    batch, part = random_batch(0).replace(reward=torch.full((12,), 2.0).double()), method.advantage
    bound = bind(method, {"advantage": {"baseline": 0.5}}, batch)
    assert torch.equal(annotate(method, bound).advantage, 1.5 * batch.sampled)
    assert part.init() == {"baseline": 0.0}
    assert part.update({"baseline": 0.5}, bound, {}) == {"baseline": pytest.approx(0.9 * 0.5 + 0.1 * 2.0)}
