"""Gradients of an update's slices, added up by the products that compute them.

Autograd hands every gradient of a weight over as a tensor of its own and then adds it to what is there: of a model of billions of
parameters that is gigabytes to write and to read again for each slice. Within `one_update` the backward passes of our own decoder
add their products to ``.grad`` in place. Gradients of matrices that are computed as one lie one behind the other, so that one
product adds to all of them. Weights stand still meanwhile: what was made of them for the first slice serves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from upslope.policies.forward.low_rank import joined, lie_together

_update: ContextVar[object | None] = ContextVar("update", default=None)


@contextmanager
def one_update() -> Iterator[None]:
    """All forward and backward passes of one update: until the end weights do not move."""
    before = _update.set(object())
    try:
        yield
    finally:
        _update.reset(before)


def update_now() -> object | None:
    """What tells the update under way from all others; None outside of any."""
    return _update.get()


def serves(weight: Tensor) -> bool:
    """Whether products add to the gradients of such weights. On a CPU autograd does, with the bits it always had."""
    return weight.is_cuda


def summed(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The parts, if products of this forward pass's way back are to add to their gradients; else nothing.

    To be asked in the forward pass: autograd goes back in a thread that knows of no update.
    """
    asked = _update.get() is not None and bool(parts) and serves(parts[0])
    return tuple(parts) if asked and all(part.is_leaf and part.requires_grad for part in parts) else ()


def precise_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float32 or better."""
    if a.is_cuda and a.dtype.itemsize == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    product = a @ b
    return product.to(torch.promote_types(product.dtype, torch.float32))


@torch.no_grad()
def add_product(parts: Sequence[Tensor], a: Tensor, b: Tensor) -> None:
    """Adds ``a @ b`` to the gradients of matrices, one above the other in it."""
    whole = _together(parts)
    if whole is None:
        add_whole(parts, precise_product(a, b))
    elif a.dtype == whole.dtype:
        whole.addmm_(a, b)
    elif a.is_cuda and a.dtype.itemsize == 2 and whole.dtype == torch.float32:
        torch.addmm(whole, a, b, out_dtype=torch.float32, out=whole)
    else:
        whole += precise_product(a, b)


@torch.no_grad()
def add_whole(parts: Sequence[Tensor], gradient: Tensor) -> None:
    """Adds a gradient to those of the parts; where they have none it becomes theirs."""
    whole = _together(parts)
    if whole is not None:
        whole += gradient
        return
    for part, own in zip(parts, gradient.to(parts[0].dtype).split([len(part) for part in parts]), strict=True):
        if part.grad is None:
            part.grad = own
        else:
            part.grad += own


def gradient_of(weight: Tensor) -> Tensor:
    """The gradient of a weight, to be added to: zeros where it has none yet."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _together(parts: Sequence[Tensor]) -> Tensor | None:
    """The gradients of parts as one tensor, if they lie so in memory."""
    grads = [part.grad for part in parts if part.grad is not None]
    if len(grads) < len(parts) or not lie_together(grads, grads[0].dtype):
        return None
    return joined(grads, grads[0].dtype)
