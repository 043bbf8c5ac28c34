"""Layers of several networks at once, all of their weights in one vector.

An ensemble is one batched product a layer. The weights lie in one flat vector, so that an optimiser step and a slowly following
copy are one operation each, however many layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from upslope.objective.networks.relu_layers import Layers, Pairs, relu_layers

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": nn.functional.silu, "gelu": nn.functional.gelu}


class FlatModule(nn.Module):
    """A module whose weights are named pieces of one vector, ``flat``.

    The pieces that learn are leaves of their own: their values are views of the vector, and so are their gradients. Frozen, the
    same values carry none: a loss then reaches the inputs of the network and not its weights.
    """

    collects = False
    """Whether a backward pass may add gradients to those of the vector without handing them on (`collect_gradients`)."""

    def __init__(self, pieces: Mapping[str, Tensor]):
        super().__init__()
        self.shapes = {name: tuple(piece.shape) for name, piece in pieces.items()}
        self.flat = nn.Parameter(torch.cat([piece.reshape(-1) for piece in pieces.values()]))
        self._bind()

    def _bind(self) -> None:
        """The pieces as views of the vector, which may just have been made, copied or moved."""
        flat = self.flat.detach()
        learns = self.flat.requires_grad
        self.frozen = self._cut(flat)
        self.leaves = self._cut(flat)
        if not learns:
            return
        self.flat.grad = torch.zeros_like(flat)
        for leaf, gradient in zip(self.leaves.values(), self._cut(self.flat.grad).values(), strict=True):
            leaf.requires_grad_()
            leaf.grad = gradient

    def _cut(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), flat.split(sizes), strict=True)}

    def pieces(self, frozen: bool) -> dict[str, Tensor]:
        """The weights by name, with or without gradient."""
        return self.frozen if frozen else self.leaves

    def stored(self) -> dict[str, Tensor]:
        """All that a checkpoint keeps of it, by name, as views."""
        return self.frozen

    def zero_gradient(self) -> None:
        if self.flat.grad is not None:
            self.flat.grad.zero_()

    def requires_grad_(self, requires_grad: bool = True) -> FlatModule:
        super().requires_grad_(requires_grad)
        self._bind()
        return self

    def _apply(self, fn: object, recurse: bool = True) -> FlatModule:
        super()._apply(fn, recurse)
        self._bind()
        return self

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name not in ("frozen", "leaves", "_asked", "collects")}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._bind()


class MLPStack(FlatModule):
    """Several multi-layer perceptrons of one shape, side by side.

    Weights begin uniform within one over the square root of a layer's inputs, as torch's linear layers do.

    Args:
        members: Networks.
        widths: Of inputs, hidden layers and outputs.
        layer_norm: Normalise what goes into each activation.
        seed: Of the weights.
    """

    def __init__(self, members: int, widths: Sequence[int], activation: str, layer_norm: bool, seed: int):
        random = torch.Generator().manual_seed(seed)
        pieces: dict[str, Tensor] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            bound = 1 / math.sqrt(inputs)
            for name, shape in (("weight", (members, inputs, outputs)), ("bias", (members, 1, outputs))):
                pieces[f"{layer}.{name}"] = torch.empty(shape).uniform_(-bound, bound, generator=random)
            if layer_norm and layer < len(widths) - 2:
                pieces[f"{layer}.scale"] = torch.ones(members, 1, outputs)
                pieces[f"{layer}.shift"] = torch.zeros(members, 1, outputs)
        self.members, self.widths, self.activation, self.layer_norm = members, tuple(widths), activation, layer_norm
        super().__init__(pieces)

    def forward(self, inputs: Tensor, frozen: bool = False, beside: Tensor | None = None, members: int = 0) -> Tensor:
        """Outputs ``[E, M, O]`` for inputs ``[M, I]``.

        Args:
            beside: Further inputs ``[M, J, K]``: the first layer looks at each row's own inputs once and at these J times. The
                outputs are then ``[E, M * J, O]``.
            members: Ask the first of them only; 0 asks all.
        """
        quick = self.activation == "relu" and not self.layer_norm and (beside is None or beside.shape[1] == 1)
        some = 0 < members < self.members
        learns = not frozen and self.flat.requires_grad
        if not quick or (some and learns):
            return self._plain(inputs, frozen, beside, members)
        leaves = tuple(self.leaves.values()) if learns else ()
        return relu_layers(self._layers(members if some else 0, frozen), inputs, None if beside is None else beside[:, 0], leaves)

    def _bind(self) -> None:
        super()._bind()
        self._asked: dict[int, tuple[Pairs, Pairs | None]] = {}
        """Weights of the first so many members and where their gradients stand, as they were asked for."""

    def _layers(self, members: int, frozen: bool) -> Layers:
        if members not in self._asked:
            gradients = {} if self.flat.grad is None else self._cut(self.flat.grad)
            self._asked[members] = self._pairs(self.frozen, members), self._pairs(gradients, members) if gradients else None
        pairs, into = self._asked[members]

        def plain(inputs: Tensor, beside: Tensor | None) -> Tensor:
            return self._plain(inputs, frozen, None if beside is None else beside.unsqueeze(1), members)

        return Layers(pairs, lambda: into if self.collects else None, plain)

    def _pairs(self, pieces: Mapping[str, Tensor], members: int) -> Pairs:
        asked = members or self.members
        cut = [piece[0] if asked == 1 else piece[:asked] for piece in pieces.values()]
        return list(zip(cut[::2], cut[1::2], strict=True))

    def _plain(self, inputs: Tensor, frozen: bool, beside: Tensor | None, members: int) -> Tensor:
        """The same by torch's own operations, layer by layer."""
        pieces, act = self.pieces(frozen), ACTIVATIONS[self.activation]
        if members and members < self.members:
            pieces = {name: piece[:members] for name, piece in pieces.items()}
        hidden = self._first(inputs, pieces, beside)
        for layer in range(len(self.widths) - 1):
            if layer:
                hidden = self._product(hidden, pieces[f"{layer}.weight"], pieces[f"{layer}.bias"])
            if layer == len(self.widths) - 2:
                return hidden
            if self.layer_norm:
                hidden = nn.functional.layer_norm(hidden, hidden.shape[-1:])
                hidden = hidden * pieces[f"{layer}.scale"] + pieces[f"{layer}.shift"]
            hidden = act(hidden)
        raise AssertionError("a network has at least one layer")

    def _first(self, inputs: Tensor, pieces: Mapping[str, Tensor], beside: Tensor | None) -> Tensor:
        weight, bias = pieces["0.weight"], pieces["0.bias"]
        if beside is None:
            return self._product(inputs.expand(len(weight), *inputs.shape), weight, bias)
        if beside.shape[1] == 1:
            return self._first(torch.cat([inputs, beside[:, 0]], -1), pieces, None)
        own, count = inputs.shape[-1], beside.shape[1]
        shared = self._product(inputs.expand(len(weight), *inputs.shape), weight[:, :own], bias)
        each = torch.matmul(beside.flatten(0, 1), weight[:, own:])
        return (shared.unsqueeze(2) + each.unflatten(1, (-1, count))).flatten(1, 2)

    def _product(self, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if len(weight) == 1:  # a plain product is quicker than a batch of one
            # Squeezed, not indexed: the gradient of an index is a tensor of zeros that it is written into.
            return torch.addmm(bias.squeeze(0), inputs.squeeze(0), weight.squeeze(0)).unsqueeze(0)
        return torch.baddbmm(bias, inputs, weight)


def follow(lagged: FlatModule, module: FlatModule, rate: float) -> None:
    """Moves a slowly following copy towards its module."""
    with torch.no_grad():
        if rate >= 1.0:
            lagged.flat.copy_(module.flat)
        else:
            lagged.flat.lerp_(module.flat, rate)


def collect_gradients(loss: Tensor, modules: Sequence[FlatModule]) -> None:
    """A backward pass that adds the gradients of these modules up where they stand, beginning from zero."""
    for module in modules:
        module.zero_gradient()
        module.__dict__["collects"] = True  # setting an attribute of torch's modules looks for parameters first
    try:
        loss.backward()
    finally:
        for module in modules:
            module.__dict__["collects"] = False
