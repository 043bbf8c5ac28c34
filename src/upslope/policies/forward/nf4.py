"""NF4: weights in four bits, as QLoRA holds those under its adapters (Dettmers et al., arXiv 2305.14314).

Numbers are cut into blocks of 64. Each is held as a code: that of the one of 16 values between -1 and 1 which is nearest to its
share of the block's largest magnitude. The values are quantiles of a normal distribution, which weights mostly follow. The
magnitudes are held in eight bits: less their mean, in groups of 256, each as the code of that value of the dynamic map which is
nearest to its share of the group's largest. That is 4 + 8 / 64 + 32 / (64 x 256) bits a weight, 0.516 bytes.

Values, rounding and what stays in float32 are those of bitsandbytes' ``quantize_4bit`` with ``quant_type="nf4"`` and
``compress_statistics=True``. Its build for a CPU departs in one place: it looks at 16 bits of a magnitude's share, and may take a
value that is by 2^-15 further than the nearest one.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward.dynamic_map import dynamic_map

BLOCK, GROUP = 64, 256
"""Numbers that share a scale; scales that share one of theirs."""
CHUNK = 2**22
"""Numbers that are quantised at once, whole blocks: each takes some twenty bytes meanwhile."""
SMALLEST_SCALE = 1e-38
VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class Codes(NamedTuple):
    """Some numbers in four bits."""

    codes: Tensor
    """Two to a byte, the first in its upper half ``[32 * blocks]``; a short last block is filled up with zeros."""
    scales: Tensor
    """The code of each block's largest magnitude."""
    tops: Tensor
    """The scale of each group's."""
    offset: Tensor
    """The mean of the largest magnitudes, which is taken from them before."""


@torch.no_grad()
def quantize(x: Tensor) -> Codes:
    """Codes of these numbers, row by row."""
    flat, device = x.detach().reshape(-1), x.device
    blocks = -(-len(flat) // BLOCK)
    codes = torch.empty(blocks * BLOCK // 2, dtype=torch.uint8, device=device)
    largest = torch.empty(blocks, device=device)
    values = torch.tensor(VALUES, device=device)
    for start in range(0, len(flat), CHUNK):
        rows = flat[start : start + CHUNK].float()
        rows = F.pad(rows, (0, -len(rows) % BLOCK)).view(-1, BLOCK)
        top = largest[start // BLOCK :][: len(rows)]
        torch.amax(rows.abs(), 1, out=top)
        pairs = _nearest(rows, top, values).to(torch.uint8).view(-1, 2)
        codes[start // 2 :][: len(pairs)] = pairs[:, 0] << 4 | pairs[:, 1]
    offset = largest.mean()
    groups = F.pad(largest - offset, (0, -blocks % GROUP)).view(-1, GROUP)
    tops = groups.abs().amax(1)
    scales = _nearest(groups, tops, dynamic_map(signed=True).to(device)).view(-1)[:blocks]
    return Codes(codes, scales.to(torch.uint8), tops, offset)


def _nearest(rows: Tensor, tops: Tensor, values: Tensor) -> Tensor:
    """Codes of the values nearest to numbers' shares of their rows' scales; of two that are equally near the lower one."""
    shares = (rows * (1 / tops.clamp_min(SMALLEST_SCALE))[:, None]).clamp_(-1, 1)
    return torch.bucketize(shares, (values[:-1] + values[1:]) / 2, out_int32=True)


@torch.no_grad()
def dequantize(held: Codes, into: Tensor) -> Tensor:
    """The numbers that codes stand for, written to a flat tensor as long as they are many."""
    scales = scale_values(held.codes.device).index_select(0, held.scales.int())
    rows = F.pad(scales, (0, -len(scales) % GROUP)).view(-1, GROUP)
    scales = (rows * held.tops[:, None]).view(-1)[: len(scales)].add_(held.offset)
    pairs, codes = _pairs(held.codes.device), held.codes.int()
    if into.dtype == torch.float32 and len(into) == len(scales) * BLOCK:
        torch.index_select(pairs, 0, codes, out=into.view(-1, 2))
        into.view(-1, BLOCK).mul_(scales[:, None])
        return into
    found = pairs.index_select(0, codes).view(-1, BLOCK).mul_(scales[:, None])
    return into.copy_(found.view(-1)[: len(into)])


@functools.cache
def scale_values(device: torch.device) -> Tensor:
    """What codes of scales stand for."""
    with torch.inference_mode(False):
        return dynamic_map(signed=True).to(device)


@functools.cache
def code_values(device: torch.device) -> Tensor:
    """What codes stand for."""
    with torch.inference_mode(False):
        return torch.tensor(VALUES, device=device)


@functools.cache
def _pairs(device: torch.device) -> Tensor:
    """The two numbers of each byte ``[256, 2]``."""
    with torch.inference_mode(False):
        return torch.cartesian_prod(torch.tensor(VALUES), torch.tensor(VALUES)).to(device)
