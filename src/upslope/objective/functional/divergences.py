"""f-divergences between the policy and a target, by the derivative of their generator."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import softplus

Divergence = Literal["forward-kl", "reverse-kl", "js", "tv", "forward-chi2", "reverse-chi2"]
"""KL(p || π), KL(π || p), Jensen-Shannon, total variation, χ²(p || π), χ²(π || p), where p is the target."""
DIVERGENCES: tuple[Divergence, ...] = get_args(Divergence)
UNBOUNDED: tuple[Divergence, ...] = ("reverse-kl", "reverse-chi2")
"""These are infinite where the policy says what the target rules out."""
LOWEST, HIGHEST = -40.0, 80.0
"""Between these an exponential of log t, and of twice its negative, is finite in float32."""


def generator_slope(divergence: Divergence, log_t: Tensor) -> Tensor:
    """f'(t) where t is the policy's probability over the target's; ``log_t`` may be infinite where the target is zero."""
    bounded = log_t.clamp(LOWEST, HIGHEST)
    match divergence:
        case "forward-kl":
            return -torch.where(log_t == torch.inf, 0.0, (-bounded).exp())
        case "reverse-kl":
            return log_t + 1
        case "js":
            return math.log(2) - softplus(-log_t)
        case "tv":
            return log_t.sign() / 2
        case "forward-chi2":
            return 1 - torch.where(log_t == torch.inf, 0.0, (-2 * bounded).exp())
        case "reverse-chi2":
            return 2 * (bounded.exp() - 1)
