"""Products of few rows: how they are cut, by card, size and precision, where a kernel of ours is faster than torch's product.

With up to 64 rows a product takes as long as reading its weights, and what counts is how many programs read at once: the inner
dimension is shared out until there are enough of them. The shares are added up by whoever reads the product next, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from upslope.policies.forward.fp8 import Fp8Rows
from upslope.policies.forward.triton.launch import power

ROWS = 64
"""With more rows torch's product is as fast or faster (H200: 128 rows of a gate of 1.5B 23 us, ours 26; 64 rows 22 and 19)."""
FP8_ROWS = 128
"""The same in eight bits, where torch's product shares nothing out of the inner dimension and a matrix of 1,536 features gives it
twelve programs. Not measured."""
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
FP8_CUTS = {(9, 0): {"plain": Cut(64, 256, 4, 3), "gate": Cut(64, 128, 4, 3), "short gate": Cut(64, 256, 4, 3)}}
"""The same in eight bits: as many bytes. Not measured; checked to fit into registers and shared memory."""
SHORT = 1024
"""Inputs of a gate up to which it is a short one: there are few programs, and each may read more at once."""


def early_launch(device: torch.device) -> bool:
    """Whether a kernel can be launched before the one before it has ended: from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def most_rows(in_eight_bits: bool) -> int:
    """Rows up to which products are ours, where they are."""
    return FP8_ROWS if in_eight_bits else ROWS


class ThinProducts:
    """Products of one number of rows.

    Args:
        rows: of the input.
        out: where shares are written, float32, flat.
        cuts: of this card: in half precision, and in eight bits.
    """

    def __init__(self, rows: int, out: Tensor, early: bool, cuts: tuple[dict[str, Cut], dict[str, Cut]]):
        self.rows, self.out, self.early, self.cuts = rows, out, early, cuts

    @staticmethod
    def of(rows: int, out: Tensor, early: bool, dtype: torch.dtype) -> ThinProducts | None:
        """None where torch's products are as fast for any number of bits, or the card is not in the table."""
        if out.device.type != "cuda" or dtype != torch.bfloat16 or rows > FP8_ROWS:
            return None
        card = torch.cuda.get_device_capability(out.device)
        return ThinProducts(rows, out, early, (CUTS[card], FP8_CUTS[card])) if card in CUTS else None

    def serves(self, weight: Tensor | Fp8Rows) -> bool:
        """Whether ours is the faster product with such a matrix."""
        return self.rows <= most_rows(isinstance(weight, Fp8Rows))

    def product(self, x: Tensor | Fp8Rows, weight: Tensor | Fp8Rows) -> tuple[Tensor, int]:
        """Shares of ``x @ weight.T``, and how many they are."""
        cut, (features, inner) = self._cut(weight, "plain"), _numbers(weight).shape
        shares = shares_of(features, inner, cut)
        self._run(x, weight, self.out, features, inner, shares, "none", cut)
        return self.out, shares

    def gated(self, x: Tensor | Fp8Rows, weight: Tensor | Fp8Rows, activation: str, out: Tensor) -> None:
        """Gate and up of ``x``, the one through the activation times the other."""
        both, inner = _numbers(weight).shape
        cut = self._cut(weight, "short gate" if inner <= SHORT else "gate")
        self._run(x, weight, out, both // 2, inner, 1, activation, cut)

    def _cut(self, weight: Tensor | Fp8Rows, kind: str) -> Cut:
        return self.cuts[isinstance(weight, Fp8Rows)][kind]

    def _run(
        self, x: Tensor | Fp8Rows, weight: Tensor | Fp8Rows, out: Tensor, features: int, inner: int, shares: int, gate: str,
        cut: Cut,
    ) -> None:  # fmt: skip
        from upslope.rollout.decode import triton_kernels as kernels

        scales = (x.scales, weight.scales) if isinstance(x, Fp8Rows) and isinstance(weight, Fp8Rows) else (out, out)
        rows = max(16, power(self.rows))
        kernels.thin_product[(-(-features // cut.block), shares)](
            _numbers(x), _numbers(weight), *scales, out, self.rows, features, inner, shares, gate, rows, cut.block, cut.inner,
            isinstance(weight, Fp8Rows), self.early, num_warps=cut.warps, num_stages=cut.stages, launch_pdl=self.early,
        )  # fmt: skip


def _numbers(held: Tensor | Fp8Rows) -> Tensor:
    return held.codes if isinstance(held, Fp8Rows) else held


def shares_of(features: int, inner: int, cut: Cut) -> int:
    """Into how many stretches the inner dimension is cut: until there are enough programs, or the stretches get short."""
    tiles, shares = -(-features // cut.block), 1
    while tiles * shares < PROGRAMS and shares < MOST_SHARES and inner // (2 * shares) >= 2 * cut.inner:
        shares *= 2
    return shares
