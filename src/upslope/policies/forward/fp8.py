"""FP8: matrices in eight bits (float8, e4m3) times inputs in eight bits, each row with a scale of its own.

A row is divided by its scale, a 448th of its largest magnitude, and rounded to the nearest number of e4m3, which has three bits
behind the leading one: a number moves by up to a sixteenth of itself. A matrix has a scale for each output, an input one for each
token, so that a product is that of the codes times both. It is what vLLM and llm-compressor call dynamic FP8, with scales per
channel and per token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward.triton import launch

LARGEST = 448.0
"""Of e4m3."""
SMALLEST = 1e-30
"""A row's largest magnitude is taken to be no less, so that rows of zeros have a scale."""
DTYPE = torch.float8_e4m3fn
MULTIPLE = 16
"""Features of an input and of an output must be a multiple of it for torch's product on a GPU."""


class Fp8Rows(NamedTuple):
    """Rows in eight bits."""

    codes: Tensor
    """``[R, F]``."""
    scales: Tensor
    """``[R]``, float32."""

    @staticmethod
    def blank(rows: int, features: int, device: torch.device) -> Fp8Rows:
        """Room for so many."""
        return Fp8Rows(torch.zeros(rows, features, dtype=DTYPE, device=device), torch.zeros(rows, device=device))

    def first(self, count: int) -> Fp8Rows:
        return Fp8Rows(self.codes[:count], self.scales[:count])


@torch.no_grad()
def quantize(x: Tensor, into: Fp8Rows | None = None) -> Fp8Rows:
    """Rows ``[R, F]`` in eight bits."""
    into = into or Fp8Rows.blank(x.shape[0], x.shape[1], x.device)
    if launch.helps(x):
        launch.quantize_fp8(x, *into)
        return into
    exact = x.float()
    top = exact.abs().amax(1, keepdim=True).clamp_min(SMALLEST)
    into.codes.copy_(exact * torch.full_like(top, LARGEST).div_(top))  # a number over a tensor is rounded twice
    into.scales.copy_((top * (1 / LARGEST)).squeeze(1))
    return into


def dequantize(rows: Fp8Rows, dtype: torch.dtype) -> Tensor:
    """The numbers that codes stand for."""
    return (rows.codes.float() * rows.scales.unsqueeze(1)).to(dtype)


def rounded(x: Tensor) -> Tensor:
    """Rows as they are in eight bits."""
    return dequantize(quantize(x), x.dtype)


def product(x: Fp8Rows, matrix: Fp8Rows, dtype: torch.dtype) -> Tensor:
    """``x @ matrix.T``, from the codes. On a GPU features are multiples of `MULTIPLE`, and ``dtype`` is bfloat16."""
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(
        x.codes, matrix.codes.t(), x.scales.unsqueeze(1), by_row, matrix.scales.unsqueeze(0), by_row, output_dtype=dtype,
        use_fast_accum=True,
    )  # fmt: skip
