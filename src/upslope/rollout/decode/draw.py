"""Drawing tokens: temperature, truncation, and the inverse of the cumulative distribution."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.types import Sampling


class Draw(NamedTuple):
    """One token per row, with the log-probability and entropy of the distribution it was drawn from."""

    token: Tensor
    logp: Tensor
    entropy: Tensor


def draw_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Draw:
    """One token per row of logits ``[B, V]``, at the point ``uniform [B]`` of its cumulative distribution."""
    logits = logits.float()
    if sampling.temperature == 0:
        certain = torch.zeros(len(logits), device=logits.device)
        return Draw(logits.argmax(1), certain, certain)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    logits = _truncated(logits, sampling)
    logp = logits.log_softmax(1)
    share = logp.exp()
    entropy = -(share * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(1)  # 0 · log 0 = 0
    # In float64 the largest uniform stays below the total, and a token without probability has an interval without length.
    cumulative = share.cumsum(1, dtype=torch.float64)
    target = uniform.double().unsqueeze(1) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, target, right=True).clamp_max(logits.shape[1] - 1)
    return Draw(place.squeeze(1), logp.gather(1, place).squeeze(1), entropy)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with what may not be drawn at minus infinity. Each rule is a floor: all tokens as likely as the last to stay, stay."""
    floors = []
    if 0 < sampling.top_k < logits.shape[1]:
        floors.append(logits.topk(sampling.top_k, dim=1).values[:, -1:])
    if sampling.top_p < 1:
        left = logits if not floors else logits.masked_fill(logits < floors[0], -torch.inf)
        ordered = left.sort(dim=1, descending=True).values
        share = ordered.softmax(1)
        dropped = share.cumsum(1) - share >= sampling.top_p
        dropped[:, 0] = False  # Rounding may give the likeliest token a little company before it; it always stays.
        floors.append(ordered.masked_fill(dropped, torch.inf).amin(1, keepdim=True))
    if sampling.min_p > 0:
        floors.append(logits.amax(1, keepdim=True) + math.log(sampling.min_p))
    for floor in floors:
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits
