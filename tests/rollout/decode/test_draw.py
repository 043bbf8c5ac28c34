"""Drawing a token from logits by a number of the unit interval."""

from __future__ import annotations

import torch

from upslope.rollout.decode.draw import draw_tokens
from upslope.types import Sampling


def test_the_ends_of_the_unit_interval_draw_tokens_with_probability():
    logits = torch.full((2, 50_000), -torch.inf)
    logits[:, [7, 40_000]] = torch.tensor([0.0, -3.0])
    largest = 1 - 2**-24
    draw = draw_tokens(logits, Sampling(1), torch.tensor([0.0, largest]))
    assert draw.token.tolist() == [7, 40_000]
    assert torch.isfinite(draw.logp).all() and torch.isfinite(draw.entropy).all()
