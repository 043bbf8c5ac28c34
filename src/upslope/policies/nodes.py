"""The steps of a decoder layer as single nodes of autograd, with their backward passes written out.

Fewer and larger nodes save time where launching costs more than computing, and memory everywhere: what is cheap to compute again
(norms, activations, weights in half precision) is not kept. Gradients of weights come out in the weights' own precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = ("silu", "gelu", "tanh")
"""``tanh`` is GELU by its usual approximation."""


class Matrix(NamedTuple):
    """Matrices that multiply the same input, one above the other."""

    low: Tensor
    """All of them ``[out, in]`` in the precision of products; no gradient goes here."""
    parts: tuple[Tensor, ...]
    """Each as the model has it: gradients go there."""

    @staticmethod
    def of(parts: tuple[Tensor, ...], dtype: torch.dtype) -> Matrix:
        with torch.no_grad():
            low = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(dtype)
        return Matrix(low.detach(), parts)


def linear(x: Tensor, matrix: Matrix, bias: Matrix | None = None) -> Tensor:
    """``x @ matrix.T + bias``."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        return F.linear(x, matrix.low, low_bias)
    return _Linear.apply(x, matrix.low, low_bias, len(matrix.parts), *_parts(matrix, bias))


def normed_linear(x: Tensor, norm: Tensor, eps: float, matrix: Matrix, bias: Matrix | None = None) -> Tensor:
    """``norm(x) @ matrix.T + bias``; the norm in float32 or better."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        return F.linear(F.rms_norm(x, x.shape[-1:], norm, eps).to(matrix.low.dtype), matrix.low, low_bias)
    return _NormedLinear.apply(x, norm, eps, matrix.low, low_bias, len(matrix.parts), *_parts(matrix, bias))


def gated_linear(both: Tensor, activation: str, matrix: Matrix) -> Tensor:
    """``(activation(gate) * up) @ matrix.T`` of ``both = [gate, up]``."""
    if not torch.is_grad_enabled():
        gate, up = both.chunk(2, -1)
        return F.linear(active(gate, activation).mul_(up), matrix.low)
    return _GatedLinear.apply(both, activation, matrix.low, *matrix.parts)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads ``[S, heads, width]`` turned by their places' angles ``[S, 1, width]``; the first half of the sines is negated."""
    return _Turned.apply(x, cos, sin) if torch.is_grad_enabled() else _turned(x, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def active(gate: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return F.silu(gate)
    return F.gelu(gate, approximate="tanh" if activation == "tanh" else "none")


def _parts(matrix: Matrix, bias: Matrix | None) -> tuple[Tensor, ...]:
    return (*matrix.parts, *(() if bias is None else bias.parts))


def precise_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float32 or better."""
    if a.is_cuda and a.dtype.itemsize == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    product = a @ b
    return product.to(torch.promote_types(product.dtype, torch.float32))


def _weight_slopes(ctx: Any, slope: Tensor, seen: Tensor, rows: list[int], first: int) -> list[Tensor | None]:
    """Gradients of the parts of a matrix and of a bias, as far as anybody wants them; ``first`` is the place of the first part."""
    count = len(rows)
    wanted = ctx.needs_input_grad[first:]
    found: list[Tensor | None] = [None] * len(wanted)
    if any(wanted[:count]):
        whole = precise_product(slope.t(), seen).split(rows)
        found[:count] = [part.to(ctx.dtypes[i]) if wanted[i] else None for i, part in enumerate(whole)]
    if any(wanted[count:]):
        whole = slope.sum(0, dtype=torch.promote_types(slope.dtype, torch.float32)).split(rows)
        found[count:] = [part.to(ctx.dtypes[count + i]) if wanted[count + i] else None for i, part in enumerate(whole)]
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, bias: Tensor | None, count: int, *parts: Tensor):
        ctx.save_for_backward(x, low)
        ctx.rows, ctx.dtypes = [len(part) for part in parts[:count]], [part.dtype for part in parts]
        return F.linear(x, low, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        x, low = ctx.saved_tensors
        slope = slope.to(low.dtype)
        return slope @ low, None, None, None, *_weight_slopes(ctx, slope, x, ctx.rows, 4)


class _NormedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, eps: float, low: Tensor, bias: Tensor | None, count: int, *parts: Tensor):
        if x.is_cuda:
            seen, scale = torch.ops.aten._fused_rms_norm(x, x.shape[-1:], norm, eps)
        else:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            seen = (x * scale).mul_(norm)
        ctx.save_for_backward(x, norm, scale, low)
        ctx.eps, ctx.rows, ctx.dtypes = eps, [len(part) for part in parts[:count]], [part.dtype for part in parts]
        return F.linear(seen.to(low.dtype), low, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        x, norm, scale, low = ctx.saved_tensors
        to_seen = (slope @ low).to(x.dtype)
        if x.is_cuda:
            wanted = [True, ctx.needs_input_grad[1]]
            to_x, to_norm = torch.ops.aten._fused_rms_norm_backward(to_seen, x, x.shape[-1:], scale, norm, wanted)
            seen, _ = torch.ops.aten._fused_rms_norm(x, x.shape[-1:], norm, ctx.eps)
        else:
            even = x * scale  # what the norm's weights multiply
            to_norm = (to_seen * even).sum(0) if ctx.needs_input_grad[1] else None
            to_even = to_seen.mul_(norm)
            share = (to_even * even).mean(-1, keepdim=True)
            to_x = torch.addcmul(to_even, even, share, value=-1).mul_(scale)
            seen = even.mul_(norm)
        return to_x, to_norm, None, None, None, None, *_weight_slopes(ctx, slope, seen.to(low.dtype), ctx.rows, 6)


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor, activation: str, low: Tensor, *parts: Tensor):
        gate, up = both.chunk(2, -1)
        ctx.save_for_backward(both, low)
        ctx.activation, ctx.dtypes = activation, [part.dtype for part in parts]
        return F.linear(active(gate, activation) * up, low)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        both, low = ctx.saved_tensors
        slope = slope.to(low.dtype)
        gate, up = both.chunk(2, -1)
        open_gate = active(gate, ctx.activation)
        to_product = slope @ low
        to_both = torch.empty_like(both)
        to_gate, to_up = to_both.chunk(2, -1)
        torch.mul(to_product, open_gate, out=to_up)
        to_product *= up
        if ctx.activation == "silu":
            to_gate.copy_(torch.ops.aten.silu_backward(to_product, gate))
        else:
            kind = "tanh" if ctx.activation == "tanh" else "none"
            to_gate.copy_(torch.ops.aten.gelu_backward(to_product, gate, approximate=kind))
        return to_both, None, None, *_weight_slopes(ctx, slope, open_gate.mul_(up), [len(low)], 3)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor):
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        back = torch.addcmul((slope * sin).roll(slope.shape[-1] // 2, -1), slope, cos)
        return back.to(slope.dtype), None, None
