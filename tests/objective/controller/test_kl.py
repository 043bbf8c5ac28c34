"""Controllers that watch the divergence: one ends the passes, one moves the weight of a KL term."""

from __future__ import annotations

import pytest
from batches import random_batch

from upslope.methods import find
from upslope.objective.controller import AdaptiveKL, TargetKL
from upslope.objective.reward import StepKL

ppo = find("ppo")


def test_target_kl_ends_the_passes():
    part = TargetKL(limit=0.02)
    assert part.ends_passes({"kl_proximal": 0.021}) and not part.ends_passes({"kl_proximal": 0.019}) and not part.ends_passes({})
    assert part.knobs(part.init(), 0.0) == {}


@pytest.mark.parametrize(("divergence", "error"), [(0.11, 0.1), (0.5, 0.2), (0.001, -0.2), (0.1, 0.0)])
def test_adaptive_kl_moves_its_weight_towards_the_target(divergence: float, error: float):
    part, batch = AdaptiveKL(target=0.1, start=0.05, horizon=100), random_batch(0)
    state = part.update(part.init(), batch, {"kl_start": divergence})
    assert state == {"weight": pytest.approx(0.05 * (1 + error * 12 / 100))}
    steered = ppo.derive(reward=StepKL(), controller=part)
    assert steered.with_knobs(part.knobs(state, 0.0)).reward[0].weight == state["weight"]
