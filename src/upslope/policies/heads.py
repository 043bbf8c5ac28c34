"""Heads: small outputs on a language model's trunk, such as values, medians, pessimistic pairs of values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from upslope.runtime import seeding
from upslope.types import Head


class SoftMinimum(nn.Module):
    r"""Several outputs on the normalised trunk, and their soft minimum: :math:`-\alpha(\log\sum_k e^{-V_k/\alpha} - \log K)`.

    A small :math:`\alpha` takes the minimum, a large one the mean.
    """

    def __init__(self, width: int, outputs: int, softness: float):
        super().__init__()
        self.norm, self.outputs, self.softness = nn.LayerNorm(width), nn.utils.skip_init(nn.Linear, width, outputs), softness

    def forward(self, hidden: Tensor) -> Tensor:
        values = self.outputs(self.norm(hidden))
        return soft_minimum(values, self.softness)


def soft_minimum(values: Tensor, softness: float) -> Tensor:
    """Over the last axis, which stays with size one."""
    spread = torch.logsumexp(-values / softness, -1, keepdim=True)
    return -softness * (spread - math.log(values.shape[-1]))


class DetachedLinear(nn.Linear):
    """A linear output whose gradient ends at its own weights."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.detach())


def make_head(head: Head, width: int, seed: int, name: str) -> nn.Module:
    """A head in float32, its weights drawn from the seed and its bias zero."""
    made: nn.Module
    if head.outputs == 1:
        made = linear = nn.utils.skip_init(DetachedLinear if head.detached else nn.Linear, width, 1)
    else:
        made = SoftMinimum(width, head.outputs, head.softness)
        linear = made.outputs
    draw = torch.randn(head.outputs, width, generator=seeding.generator(seed, f"{name} head"))
    with torch.no_grad():
        linear.weight.copy_(draw / (width + 1) ** 0.5)
        linear.bias.zero_()
    return made.float()
