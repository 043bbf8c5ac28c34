"""Operations of a decoder layer as single nodes of autograd, with their backward passes written out.

Fewer and larger nodes save time where launching costs more than computing, and memory everywhere: what is cheap to compute again
(norms, activations, weights in half precision) is not kept. Gradients of weights come out in the weights' own precision.

A product that another pass has computed before can be given as ``known``: it is taken as it is, and the backward pass is the same.
Without gradient a product can be written ``into`` a tensor at hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward import fp8, gates
from upslope.policies.forward.fp8 import Fp8Rows
from upslope.policies.forward.gradient_sums import add_product, add_whole, precise_product, summed
from upslope.policies.forward.low_rank import LowRank, joined, lie_together
from upslope.policies.forward.packed_matrix import PackedMatrix
from upslope.policies.forward.triton import launch
from upslope.runtime import torch_private

ACTIVATIONS = ("silu", "gelu", "tanh")
"""``tanh`` is GELU by its usual approximation."""


class Matrix(NamedTuple):
    """Matrices that multiply the same input, one above the other."""

    low: Tensor
    """All of them ``[out, in]`` in the precision of products; no gradient goes here. Packed ones have no numbers here."""
    parts: tuple[Tensor, ...]
    """Each as the model has it: gradients go there. None of matrices that never change."""
    adapter: LowRank | None = None
    """What is added to the product beside it."""
    packed: PackedMatrix | None = None
    """The matrices in four bits, if they are held so: unpacked for each product."""
    fp8: Fp8Rows | None = None
    """The matrices in eight bits, if sampling multiplies with them: what they multiply is rounded to eight bits too. Plain torch
    reads what they stand for, in ``low``; learning has matrices without them."""

    @staticmethod
    def of(parts: tuple[Tensor, ...], dtype: torch.dtype) -> Matrix:
        return gathered([parts], dtype)[0]


def gathered(several: list[tuple[Tensor, ...]], dtype: torch.dtype) -> list[Matrix]:
    """Matrices of these parts. Those of a whole model go to one stretch of memory in a few launches, with few calls for each."""
    copied = [parts for parts in several if parts[0].dtype != dtype or (len(parts) > 1 and not _one(parts, dtype))]
    if not copied:
        return [Matrix(joined(parts, dtype), parts) for parts in several]
    pieces = [part for parts in copied for part in parts]
    sizes = [part.numel() for part in pieces]
    flat = torch.empty(sum(sizes), dtype=dtype, device=pieces[0].device)
    with torch.no_grad():
        targets = [target.view(part.shape) for target, part in zip(flat.split(sizes), pieces, strict=True)]
        torch_private.foreach_copy_(targets, pieces)
        wholes = flat.split([sum(part.numel() for part in parts) for parts in copied])
        lows = {id(parts): whole.view(-1, *parts[0].shape[1:]) for whole, parts in zip(wholes, copied, strict=True)}
    return [Matrix(lows[id(parts)] if id(parts) in lows else joined(parts, dtype), parts) for parts in several]


def _one(parts: tuple[Tensor, ...], dtype: torch.dtype) -> bool:
    """Whether parts are one matrix in memory already. Nobody lays them so but in half precision."""
    return dtype.itemsize == 2 and lie_together(parts, dtype)


def linear(
    x: Tensor, matrix: Matrix, bias: Matrix | None = None, known: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """``x @ matrix.T + bias``."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        return _sampled_product(x, matrix, low_bias, into) if known is None else known
    return _Linear.apply(x, matrix.low, *_beside(matrix), low_bias, known, _shape(matrix), *_parts(matrix, bias))


def normed_linear(
    x: Tensor, delta: Tensor | None, norm: Tensor, eps: float, matrix: Matrix, bias: Matrix | None = None,
    known: Tensor | None = None, into: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``x + delta``, and ``norm(x + delta) @ matrix.T + bias``; sum and norm in float32 or better."""
    low_bias = None if bias is None else bias.low
    if not torch.is_grad_enabled():
        if known is not None:
            return x if delta is None else x + delta, known
        if launch.helps(x):
            total, seen = launch.add_norm(x, delta, norm, eps, matrix.low.dtype)
        else:
            total = x if delta is None else x + delta
            seen = normed(total, norm, eps).to(matrix.low.dtype)
        return total, _sampled_product(seen, matrix, low_bias, into)
    return _NormedLinear.apply(
        x, delta, norm, eps, matrix.low, *_beside(matrix), low_bias, known, _shape(matrix), *_parts(matrix, bias)
    )


def gated_linear(
    both: Tensor, gate_act: Tensor | None, activation: str, matrix: Matrix, known: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """``(activation(gate) * up) @ matrix.T`` of ``both = [gate, up]`` and the gate's `gate_activation`."""
    if not torch.is_grad_enabled():
        if known is not None:
            return known
        product = gates.gated(both, gate_act, activation)
        return _sampled_product(product, matrix, None, into)
    return _GatedLinear.apply(
        both, gate_act, activation, matrix.low, *_beside(matrix), known, _shape(matrix), *_parts(matrix, None)
    )


@torch.no_grad()
def gate_activation(both: Tensor, activation: str, into: Tensor | None = None) -> Tensor | None:
    """What takes longest to compute of a gate: its sigmoid for SiLU, else the activation. None where kernels compute it anew."""
    if launch.helps(both):
        return None
    gate = both.chunk(2, -1)[0]
    if activation == "silu":
        return torch.sigmoid(gate, out=into)
    found = F.gelu(gate, approximate=gates.approximation(activation))
    return found if into is None else into.copy_(found)


def apply_rope(packed: Tensor, cos: Tensor, sin: Tensor, rotated_heads: int, known: bool = False) -> Tensor:
    """Heads ``[S, heads, width]``, the first ``rotated_heads`` rotated by their positions' angles ``[S, 1, width]``.

    The first half of the sines is negated. Without gradient the heads may be overwritten. ``known``: they were rotated before.
    """
    if torch.is_grad_enabled():
        return _Rope.apply(packed, cos, sin, rotated_heads, known)
    if known:
        return packed
    if launch.helps(packed):
        return launch.rope(packed, cos, sin, rotated_heads)
    asked = packed[:, :rotated_heads]
    _apply_rope(asked, cos, sin, asked)
    return packed


def normed(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """An RMS norm, without gradient."""
    return (x * _rms_scale(x, eps)).mul_(norm)


def _rms_scale(x: Tensor, eps: float) -> Tensor:
    """What an RMS norm multiplies each row with ``[S, 1]``, before its weights."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(length.new_full((), eps), length, length, value=1 / x.shape[-1]).rsqrt_()


def _read(low: Tensor, packed: PackedMatrix | None) -> Tensor:
    """A matrix for one product; a packed one stays there until the next is read."""
    return low if packed is None else packed.unpacked()


def _sampled_product(x: Tensor, matrix: Matrix, bias: Tensor | None, into: Tensor | None) -> Tensor:
    """A product without gradient; adapters multiply what is given as it is."""
    low, (a, b) = _read(matrix.low, matrix.packed), _beside(matrix)
    if matrix.fp8 is None:
        return _product(x, low, bias, into, a, b)
    found = _product(fp8.rounded(x), low, bias, into)
    return found if a is None or b is None else found.addmm_(x @ a.t(), b.t())


def _product(
    x: Tensor, low: Tensor, bias: Tensor | None, into: Tensor | None = None, a: Tensor | None = None, b: Tensor | None = None
) -> Tensor:
    if a is not None and b is not None:
        # The small share first: what is rounded to the precision of products then is small, and the sum is rounded once.
        beside, across = x @ a.t(), b.t()
        found = torch.mm(beside, across, out=into) if bias is None else torch.addmm(bias, beside, across, out=into)
        return found.addmm_(x, low.t())
    if into is None:
        return F.linear(x, low, bias)
    return torch.mm(x, low.t(), out=into) if bias is None else torch.addmm(bias, x, low.t(), out=into)


def _apply_rope(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=out)


def _parts(matrix: Matrix, bias: Matrix | None) -> tuple[Tensor, ...]:
    beside = () if matrix.adapter is None else matrix.adapter.parts
    return (*matrix.parts, *(() if bias is None else bias.parts), *beside)


def _beside(matrix: Matrix) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if matrix.adapter is None else (matrix.adapter.a, matrix.adapter.b)


Shape = tuple[int, tuple[float, ...], PackedMatrix | None]


def _shape(matrix: Matrix) -> Shape:
    """How many of a function's last arguments are parts of the matrix; the scales of its adapters, if it has any; and what it is
    unpacked from, if it is packed: the backward pass unpacks it once more."""
    return len(matrix.parts), () if matrix.adapter is None else matrix.adapter.scales, matrix.packed


def _input_grad(grad: Tensor, low: Tensor, a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The gradient of what a matrix multiplied, and that of what its adapters made of it."""
    if a is None or b is None:
        return grad @ low, None
    beside = grad @ b
    return (grad @ low).addmm_(beside, a), beside


def _adapter_grads(ctx: Any, grad: Tensor, seen: Tensor, a: Tensor, beside: Tensor, first: int) -> list[Tensor | None]:
    """Gradients of each A and each B, the last arguments; the matrix beside them gets none.

    Args:
        seen: what the matrix and each A multiplied.
        beside: the gradient of what they made of it.
        first: the place of the first A.
    """
    wanted, count = ctx.needs_input_grad[first:], len(ctx.scales)
    if not any(wanted):
        return [None] * len(wanted)
    to_a = precise_product(beside.t(), seen).split(ctx.rows[:count])
    to_b, row, column = precise_product(grad.t(), seen @ a.t()), 0, 0
    found = [part.to(kind) for part, kind in zip(to_a, ctx.dtypes, strict=False)]
    for number, scale in enumerate(ctx.scales):
        high, rank = ctx.rows[count + number], ctx.rows[number]
        part = to_b[row : row + high, column : column + rank] * scale
        found.append(part.to(ctx.dtypes[count + number]))
        row, column = row + high, column + rank
    return [part if own else None for part, own in zip(found, wanted, strict=True)]


def _weight_grads(
    ctx: Any, grad: Tensor, seen: Tensor | None, rows: list[int], first: int, matrix_grad: Tensor | None = None
) -> list[Tensor | None]:
    """Gradients of the parts of a matrix and of a bias, as far as anybody wants them; none of those that are added up in place.

    Args:
        seen: what the matrix multiplied; not needed if the gradient of the whole matrix is given.
        first: the place of the first part.
    """
    count = len(rows)
    wanted = ctx.needs_input_grad[first:]
    found: list[Tensor | None] = [None] * len(wanted)
    if ctx.summed and matrix_grad is not None:
        add_whole(ctx.summed, matrix_grad)
    elif ctx.summed:
        assert seen is not None
        add_product(ctx.summed, grad.t(), seen)
    elif any(wanted[:count]):
        if matrix_grad is None:
            assert seen is not None
            matrix_grad = precise_product(grad.t(), seen)
        whole = matrix_grad.split(rows)
        found[:count] = [part.to(ctx.dtypes[i]) if wanted[i] else None for i, part in enumerate(whole)]
    if any(wanted[count:]):
        whole = grad.sum(0, dtype=torch.promote_types(grad.dtype, torch.float32)).split(rows)
        found[count:] = [part.to(ctx.dtypes[count + i]) if wanted[count + i] else None for i, part in enumerate(whole)]
    return found


def _remember(ctx: Any, shape: Shape, parts: tuple[Tensor, ...]) -> None:
    count, ctx.scales, ctx.packed = shape
    ctx.summed = () if ctx.scales else summed(parts[:count])
    ctx.rows, ctx.dtypes = [len(part) for part in (parts if ctx.scales else parts[:count])], [part.dtype for part in parts]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, low: Tensor, a: Tensor | None, b: Tensor | None, bias: Tensor | None, known: Tensor | None,
        shape: Shape, *parts: Tensor,
    ):  # fmt: skip
        ctx.save_for_backward(x, low, a, b)
        _remember(ctx, shape, parts)
        return _product(x, _read(low, ctx.packed), bias, None, a, b) if known is None else known

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        x, low, a, b = ctx.saved_tensors
        grad = grad.to(low.dtype)
        low = _read(low, ctx.packed)
        to_x, beside = _input_grad(grad, low, a, b)
        grads = _weight_grads(ctx, grad, x, ctx.rows, 7) if beside is None else _adapter_grads(ctx, grad, x, a, beside, 7)
        return to_x, None, None, None, None, None, None, *grads


class _NormedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, norm: Tensor, eps: float, low: Tensor, a: Tensor | None, b: Tensor | None,
        bias: Tensor | None, known: Tensor | None, shape: Shape, *parts: Tensor,
    ):  # fmt: skip
        scale = None
        if launch.helps(x):
            total, seen = launch.add_norm(x, delta, norm, eps, low.dtype)
        else:
            total = x if delta is None else x + delta
            scale = _rms_scale(total, eps)
            seen = total if known is not None else (total * scale).mul_(norm).to(low.dtype)
        ctx.save_for_backward(total, norm, scale, low, a, b)
        ctx.eps, ctx.delta = eps, None if delta is None else delta.dtype
        _remember(ctx, shape, parts)
        return total, _product(seen, _read(low, ctx.packed), bias, None, a, b) if known is None else known

    @staticmethod
    def backward(ctx: Any, to_total: Tensor, grad: Tensor):  # type: ignore[override]
        total, norm, scale, low, a, b = ctx.saved_tensors
        low = _read(low, ctx.packed)
        if scale is None:
            to_seen, beside = _input_grad(grad, low, a, b)
            to_x, to_delta, of_norm, seen = launch.norm_back(to_seen, total, norm, to_total, ctx.eps, ctx.delta)
            if beside is not None:
                grads = _adapter_grads(ctx, grad, seen, a, beside, 10)
            else:
                grads = _weight_grads(ctx, grad, seen, ctx.rows, 10)
            return to_x, to_delta, of_norm, None, None, None, None, None, None, None, *grads
        even = total * scale  # what the norm's weights multiply
        to_norm: Tensor | None = None
        if a is None:
            beside = None
            to_even = (grad @ (low * norm).to(low.dtype)).to(total.dtype)
        else:  # the matrix is read as it is: there may be no room for a copy
            to_seen, beside = _input_grad(grad, low, a, b)
            to_norm = (to_seen * even).sum(0) if ctx.needs_input_grad[2] else None
            to_even = to_seen.to(total.dtype) * norm
        share = torch.linalg.vecdot(to_even, even).div_(-even.shape[-1]).unsqueeze(-1)
        if beside is not None:
            grads = _adapter_grads(ctx, grad, (even * norm).to(low.dtype), a, beside, 10)
        else:
            product = None
            # The norm's weights scale columns of the matrix as well as they scale inputs: one product over all tokens serves both.
            if any(ctx.needs_input_grad[i] for i in (2, *range(10, 10 + len(ctx.rows)))):
                product = precise_product(grad.t(), even.to(low.dtype))
                to_norm = (product * low).sum(0)
                product *= norm
            grads = _weight_grads(ctx, grad, None, ctx.rows, 10, product)
        to_x = to_even.addcmul_(even, share).mul_(scale).add_(to_total)
        to_delta = None if ctx.delta is None else to_x.to(ctx.delta)
        return to_x, to_delta, to_norm, None, None, None, None, None, None, None, *grads


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, both: Tensor, gate_act: Tensor | None, activation: str, low: Tensor, a: Tensor | None, b: Tensor | None,
        known: Tensor | None, shape: Shape, *parts: Tensor,
    ):  # fmt: skip
        ctx.save_for_backward(both, gate_act, low, a, b)
        ctx.activation = activation
        _remember(ctx, shape, parts)
        if known is not None:
            return known
        product = gates.gated(both, gate_act, activation)
        return _product(product, _read(low, ctx.packed), None, None, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        both, gate_act, low, a, b = ctx.saved_tensors
        grad = grad.to(low.dtype)
        low = _read(low, ctx.packed)
        to_product, beside = _input_grad(grad, low, a, b)
        if gate_act is None:
            to_both, product = launch.gated_back(both, to_product, ctx.activation)
        else:
            to_both, product = gates.gated_back(both, gate_act, to_product, ctx.activation)
        if beside is not None:
            grads = _adapter_grads(ctx, grad, product, a, beside, 8)
        else:
            grads = _weight_grads(ctx, grad, product, [len(low)], 8)
        return to_both, None, None, None, None, None, None, None, *grads


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor, sin: Tensor, rotated_heads: int, known: bool):
        ctx.save_for_backward(cos, sin)
        ctx.rotated_heads = rotated_heads
        if known:
            return packed
        if launch.helps(packed):
            return launch.rope(packed, cos, sin, rotated_heads)
        out = torch.empty_like(packed)
        out[:, rotated_heads:] = packed[:, rotated_heads:]
        _apply_rope(packed[:, :rotated_heads], cos, sin, out[:, :rotated_heads])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        (cos, sin), rotated_heads = ctx.saved_tensors, ctx.rotated_heads
        if launch.helps(grad):
            return launch.rope(grad, cos, sin, rotated_heads, back=True), None, None, None, None
        asked, back = grad[:, :rotated_heads], torch.empty_like(grad)
        back[:, rotated_heads:] = grad[:, rotated_heads:]
        torch.addcmul((asked * sin).roll(grad.shape[-1] // 2, -1), asked, cos, out=back[:, :rotated_heads])
        return back, None, None, None, None
