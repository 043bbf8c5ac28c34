"""The dynamic map: 256 values between -1 and 1, the closer to each other the nearer they are to zero (Dettmers, arXiv 1511.04561).

Adam's moments in eight bits are held as codes of them, and the scales of weights in four bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

DECADES = 7
"""Powers of ten that the values span."""


def dynamic_map(signed: bool) -> Tensor:
    """The values of the codes, from the smallest to the largest ``[256]``.

    Each decade from 0.1 to 1 down to 1e-7 to 1e-6 is cut into equal parts, the highest into 128 and each into half as many as the
    one above it, or with signs, which need as many values below zero, the highest into 64. Values are the middles of the parts,
    zero and one; there is no minus one.
    """
    found = [torch.tensor([0.0, 1.0])]
    for decade in range(DECADES):
        edges = torch.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade + 1 - DECADES)
        found += [middles, -middles] if signed else [middles]
    return torch.cat(found).sort().values
