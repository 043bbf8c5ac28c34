"""The steps of a decoder layer as single nodes of autograd, with their backward passes written out.

Fewer and larger nodes save time where launching costs more than computing, and memory everywhere: what is cheap to compute again
(norms, activations, weights in half precision) is not kept. Gradients of weights come out in the weights' own precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies import fused

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
        return gathered([parts], dtype)[0]


def gathered(several: list[tuple[Tensor, ...]], dtype: torch.dtype) -> list[Matrix]:
    """Matrices of these parts. Those of a whole model go to one stretch of memory in a few launches, with few calls for each."""
    copied = [parts for parts in several if len(parts) > 1 or parts[0].dtype != dtype]
    if not copied:
        return [Matrix(parts[0].detach(), parts) for parts in several]
    pieces = [part for parts in copied for part in parts]
    sizes = [part.numel() for part in pieces]
    flat = torch.empty(sum(sizes), dtype=dtype, device=pieces[0].device)
    with torch.no_grad():
        targets = [target.view(part.shape) for target, part in zip(flat.split(sizes), pieces, strict=True)]
        torch._foreach_copy_(targets, pieces)
        wholes = flat.split([sum(part.numel() for part in parts) for parts in copied])
        lows = {id(parts): whole.view(-1, *parts[0].shape[1:]) for whole, parts in zip(wholes, copied, strict=True)}
    return [Matrix(lows[id(parts)] if id(parts) in lows else parts[0].detach(), parts) for parts in several]


def linear(x: Tensor, matrix: Matrix, bias: Matrix | None = None) -> Tensor:
    """``x @ matrix.T + bias``."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        return F.linear(x, matrix.low, low_bias)
    return _Linear.apply(x, matrix.low, low_bias, len(matrix.parts), *_parts(matrix, bias))


def normed_linear(
    x: Tensor, delta: Tensor | None, norm: Tensor, eps: float, matrix: Matrix, bias: Matrix | None = None
) -> tuple[Tensor, Tensor]:
    """``x + delta``, and ``norm(x + delta) @ matrix.T + bias``; sum and norm in float32 or better."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        if fused.helps(x):
            total, seen = fused.add_norm(x, delta, norm, eps, matrix.low.dtype)
        else:
            total = x if delta is None else x + delta
            seen = F.rms_norm(total, x.shape[-1:], norm, eps).to(matrix.low.dtype)
        return total, F.linear(seen, matrix.low, low_bias)
    return _NormedLinear.apply(x, delta, norm, eps, matrix.low, low_bias, len(matrix.parts), *_parts(matrix, bias))


def gated_linear(both: Tensor, activation: str, matrix: Matrix) -> Tensor:
    """``(activation(gate) * up) @ matrix.T`` of ``both = [gate, up]``."""
    if not torch.is_grad_enabled():
        return F.linear(_gated(both, activation), matrix.low)
    return _GatedLinear.apply(both, activation, matrix.low, *matrix.parts)


def turned(packed: Tensor, cos: Tensor, sin: Tensor, turning: int) -> Tensor:
    """Heads ``[S, heads, width]``, the first ``turning`` turned by their places' angles ``[S, 1, width]``; the rest as they are.

    The first half of the sines is negated. Without gradient the heads may be overwritten.
    """
    if torch.is_grad_enabled():
        return _Turned.apply(packed, cos, sin, turning)
    if fused.helps(packed):
        return fused.turn(packed, cos, sin, turning)
    asked = packed[:, :turning]
    _turned(asked, cos, sin, asked)
    return packed


def _turned(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=out)


def _gated(both: Tensor, activation: str) -> Tensor:
    if fused.helps(both):
        return fused.gated(both, activation)
    gate, up = both.chunk(2, -1)
    return active(gate, activation).mul_(up)


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
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, norm: Tensor, eps: float, low: Tensor, bias: Tensor | None, count: int,
        *parts: Tensor,
    ):  # fmt: skip
        scale = None
        if fused.helps(x):
            total, seen = fused.add_norm(x, delta, norm, eps, low.dtype)
        else:
            total = x if delta is None else x + delta
            length = torch.linalg.vector_norm(total, dim=-1, keepdim=True)
            scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            seen = (total * scale).mul_(norm).to(low.dtype)
        ctx.save_for_backward(total, norm, scale, low)
        ctx.eps, ctx.delta = eps, None if delta is None else delta.dtype
        ctx.rows, ctx.dtypes = [len(part) for part in parts[:count]], [part.dtype for part in parts]
        return total, F.linear(seen, low, bias)

    @staticmethod
    def backward(ctx: Any, to_total: Tensor, slope: Tensor):  # type: ignore[override]
        total, norm, scale, low = ctx.saved_tensors
        to_seen = slope @ low
        if scale is None:
            to_x, to_delta, to_norm, seen = fused.norm_back(to_seen, total, norm, to_total, ctx.eps, ctx.delta)
        else:
            to_seen = to_seen.to(total.dtype)
            even = total * scale  # what the norm's weights multiply
            to_norm = (to_seen * even).sum(0)
            to_even = to_seen.mul_(norm)
            share = (to_even * even).mean(-1, keepdim=True)
            to_x = torch.addcmul(to_even, even, share, value=-1).mul_(scale).add_(to_total)
            to_delta = None if ctx.delta is None else to_x.to(ctx.delta)
            seen = even.mul_(norm).to(low.dtype)
        return to_x, to_delta, to_norm, None, None, None, None, *_weight_slopes(ctx, slope, seen, ctx.rows, 7)


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor, activation: str, low: Tensor, *parts: Tensor):
        share = None
        if activation == "silu" and not fused.helps(both):
            gate, up = both.chunk(2, -1)
            share = gate.sigmoid()  # kept, as exponentials take longest of all that is not a product
            product = (gate * share).mul_(up)
        else:
            product = _gated(both, activation)
        ctx.save_for_backward(both, share, low)
        ctx.activation, ctx.dtypes = activation, [part.dtype for part in parts]
        return F.linear(product, low)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        both, share, low = ctx.saved_tensors
        slope = slope.to(low.dtype)
        to_product = slope @ low
        if fused.helps(both):
            to_both, product = fused.gated_back(both, to_product, ctx.activation)
        else:
            to_both, product = _gated_back(both, share, to_product, ctx.activation)
        return to_both, None, None, *_weight_slopes(ctx, slope, product, [len(low)], 3)


def _gated_back(both: Tensor, share: Tensor | None, to_product: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The slope of ``both``, and the product once more."""
    gate, up = both.chunk(2, -1)
    open_gate = active(gate, activation) if share is None else gate * share
    to_both = torch.empty_like(both)
    to_gate, to_up = to_both.chunk(2, -1)
    torch.mul(to_product, open_gate, out=to_up)
    to_product *= up
    if share is not None:  # share + open_gate (1 - share)
        steep = torch.addcmul(open_gate, open_gate, share, value=-1).add_(share)
        torch.mul(to_product, steep, out=to_gate)
    else:
        kind = "tanh" if activation == "tanh" else "none"
        to_gate.copy_(torch.ops.aten.gelu_backward(to_product, gate, approximate=kind))
    return to_both, open_gate.mul_(up)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor, sin: Tensor, turning: int):
        ctx.save_for_backward(cos, sin)
        ctx.turning = turning
        if fused.helps(packed):
            return fused.turn(packed, cos, sin, turning)
        out = torch.empty_like(packed)
        out[:, turning:] = packed[:, turning:]
        _turned(packed[:, :turning], cos, sin, out[:, :turning])
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        (cos, sin), turning = ctx.saved_tensors, ctx.turning
        if fused.helps(slope):
            return fused.turn(slope, cos, sin, turning, back=True), None, None, None
        asked, back = slope[:, :turning], torch.empty_like(slope)
        back[:, turning:] = slope[:, turning:]
        torch.addcmul((asked * sin).roll(slope.shape[-1] // 2, -1), asked, cos, out=back[:, :turning])
        return back, None, None, None
