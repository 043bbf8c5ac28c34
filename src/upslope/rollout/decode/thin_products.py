"""Products of few rows: how they are cut, by card and size, where a kernel of ours is faster than torch's product.

With up to 64 rows a product takes as long as reading its weights, and what counts is how many programs read at once: the inner
dimension is shared out until there are enough of them. The shares are added up by whoever reads the product next, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 64
"""With more rows torch's product is as fast or faster (H200: 128 rows of a gate of 1.5B 23 us, ours 26; 64 rows 22 and 19)."""
PROGRAMS = 96
"""So many programs keep an H200 busy reading."""
MOST_SHARES = 8


class Cut(NamedTuple):
    """Features of a program, inputs it reads at once, and how it runs."""

    block: int
    inner: int
    warps: int
    stages: int


CUTS = {(9, 0): {"plain": Cut(64, 128, 4, 4), "gate": Cut(64, 64, 4, 4), "short gate": Cut(64, 128, 4, 4)}}
"""By the card's compute capability; measured on an H200 at the sizes of 0.5B and 1.5B parameters."""
SHORT = 1024
"""Inputs of a gate up to which it is a short one: there are few programs, and each may read more at once."""


def early_launch(device: torch.device) -> bool:
    """Whether a kernel can be launched before the one before it has ended: from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class ThinProducts:
    """Products of one number of rows.

    Args:
        rows: of the input.
        out: where shares are written, float32, flat.
    """

    def __init__(self, rows: int, out: Tensor, early: bool):
        self.rows, self.out, self.early = rows, out, early

    @staticmethod
    def serve(device: torch.device, rows: int, dtype: torch.dtype) -> bool:
        return (
            device.type == "cuda" and rows <= ROWS and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) in CUTS
        )

    def product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        """Shares of ``x @ weight.T``, and how many they are."""
        cut = CUTS[torch.cuda.get_device_capability(x.device)]["plain"]
        features, inner = weight.shape
        shares = shares_of(features, inner, cut)
        self._run(x, weight, self.out, features, inner, shares, "none", cut)
        return self.out, shares

    def gated(self, x: Tensor, weight: Tensor, activation: str, out: Tensor) -> None:
        """Gate and up of ``x``, the one through the activation times the other."""
        kind = "short gate" if weight.shape[1] <= SHORT else "gate"
        cut = CUTS[torch.cuda.get_device_capability(x.device)][kind]
        self._run(x, weight, out, len(weight) // 2, weight.shape[1], 1, activation, cut)

    def _run(self, x: Tensor, weight: Tensor, out: Tensor, features: int, inner: int, shares: int, gate: str, cut: Cut) -> None:
        from upslope.rollout.decode import triton_kernels as kernels

        kernels.thin_product[(-(-features // cut.block), shares)](
            x, weight, out, self.rows, features, inner, shares, gate, max(16, self.rows), cut.block, cut.inner, self.early,
            num_warps=cut.warps, num_stages=cut.stages, launch_pdl=self.early,
        )  # fmt: skip


def shares_of(features: int, inner: int, cut: Cut) -> int:
    """Into how many stretches the inner dimension is cut: until there are enough programs, or the stretches get short."""
    tiles, shares = -(-features // cut.block), 1
    while tiles * shares < PROGRAMS and shares < MOST_SHARES and inner // (2 * shares) >= 2 * cut.inner:
        shares *= 2
    return shares
