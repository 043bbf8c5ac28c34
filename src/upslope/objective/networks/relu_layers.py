"""Layers with ReLU between them, several networks at once, with their backward pass written out.

Torch's own would make a tensor for every gradient of a weight and then add it to where gradients stand, keep what was there before
each ReLU, and look for what an input's gradient needs in layers of inputs that have none. Here a gradient is added where it belongs
by the product that makes it. Whoever differentiates a gradient again gets torch's own, computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Pairs = Sequence[tuple[Tensor, Tensor]]
"""A weight ``[E, I, O]`` and a bias ``[E, 1, O]`` for each layer; of one network without the first axis: a plain product is quicker
than a batch of one."""


class Layers(NamedTuple):
    """What is asked: weights, where their gradients are added up, and the same by torch's own operations."""

    pairs: Pairs
    gradients: Callable[[], Pairs | None]
    """Where gradients are added up now; None hands them back."""
    plain: Callable[[Tensor, Tensor | None], Tensor]


def relu_layers(layers: Layers, seen: Tensor, beside: Tensor | None, leaves: Sequence[Tensor]) -> Tensor:
    """Outputs ``[E, M, O]`` for inputs ``[M, I]`` and further ones ``[M, K]`` beside them.

    Args:
        leaves: The weights and biases that learn, one pair after the other, or none.
    """
    if torch.is_grad_enabled() and (leaves or seen.requires_grad or (beside is not None and beside.requires_grad)):
        return ReluLayers.apply(layers, seen, beside, *leaves)
    return _forward(layers.pairs, seen, beside)[-1]


class ReluLayers(torch.autograd.Function):
    """`relu_layers` with gradients in the inputs and in the weights that learn, as far as somebody asks for them."""

    @staticmethod
    def forward(ctx: Any, layers: Layers, seen: Tensor, beside: Tensor | None, *leaves: Tensor) -> Tensor:
        *kept, output = _forward(layers.pairs, seen, beside)
        ctx.layers, ctx.leaves = layers, leaves
        ctx.save_for_backward(seen, beside, *kept, *(weight for weight, _ in layers.pairs))
        return output

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        layers, (seen, beside, *saved) = ctx.layers, ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return (None, *_differentiable(layers, (seen, beside, *ctx.leaves), slopes[0], wanted[1:]))
        kept, weights = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        one, learns = weights[0].dim() == 2, any(wanted[3:])
        into = layers.gradients() if learns else None
        handed = None
        if learns and into is None:
            handed = [torch.zeros_like(piece) for pair in layers.pairs for piece in pair]
            into = list(zip(handed[::2], handed[1::2], strict=True))
        slope = _backward(kept, weights, slopes[0].squeeze(0) if one else slopes[0], into)
        found: list[Tensor | None] = [None, *_of_inputs(slope, weights[0], seen, beside, wanted)]
        if handed is None:
            return (*found, *(None,) * (len(wanted) - 3))
        return (*found, *(piece.unsqueeze(0) if one else piece for piece in handed))


def _forward(pairs: Pairs, seen: Tensor, beside: Tensor | None) -> list[Tensor]:
    """What goes into each layer, and last what comes out ``[E, M, O]``."""
    one = pairs[0][0].dim() == 2
    product = torch.addmm if one else torch.baddbmm
    hidden = seen if beside is None else torch.cat([seen, beside], -1)
    if not one:
        hidden = hidden.expand(len(pairs[0][0]), *hidden.shape)
    kept = [hidden]
    for weight, bias in pairs[:-1]:
        hidden = product(bias, hidden, weight).relu_()
        kept.append(hidden)
    output = product(pairs[-1][1], hidden, pairs[-1][0])
    kept.append(output.unsqueeze(0) if one else output)
    return kept


def _backward(kept: Sequence[Tensor], weights: Sequence[Tensor], slope: Tensor, into: Pairs | None) -> Tensor:
    """Adds the gradients of weights to where they belong; gives that of what the first layer puts out, before its ReLU."""
    one = weights[0].dim() == 2
    product, add = (torch.mm, Tensor.addmm_) if one else (torch.bmm, Tensor.baddbmm_)
    ones = slope.new_ones((*slope.shape[:-2], 1, slope.shape[-2])) if into is not None else slope  # a product adds rows up fastest
    for layer in range(len(weights) - 1, -1, -1):
        if into is not None:
            add(into[layer][0], kept[layer].mT, slope)
            add(into[layer][1], ones, slope)
        if layer:
            back = weights[layer].mT
            slope = slope * back if slope.shape[-1] == 1 else product(slope, back)
            slope = torch.ops.aten.threshold_backward.grad_input(slope, kept[layer], 0, grad_input=slope)
    return slope


def _of_inputs(slope: Tensor, weight: Tensor, seen: Tensor, beside: Tensor | None, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of both kinds of inputs, as far as they are wanted."""
    found: list[Tensor | None] = []
    own = seen.shape[-1]
    for wants, rows in ((wanted[1], slice(0, own)), (wanted[2], slice(own, None))):
        if not wants:
            found.append(None)
            continue
        part = torch.matmul(slope, weight[..., rows, :].mT)
        found.append(part if part.dim() == 2 else part.sum(0))
    return found


def _differentiable(layers: Layers, inputs: Sequence[Tensor | None], slope: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients by torch's own operations, which can be differentiated again."""
    asked = [each for each, wants in zip(inputs, wanted, strict=True) if wants and each is not None]
    seen, beside = inputs[:2]
    assert seen is not None
    found = iter(torch.autograd.grad(layers.plain(seen, beside), asked, slope, create_graph=True))
    return [next(found) if wants else None for wants in wanted]
