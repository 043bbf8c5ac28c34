"""Weights in the precision of products, held once: learning and sampling read the same memory, whose addresses stay.

The weights that learn are in float32. Products want them in half precision, and those that share an input as one matrix. Such a
set of a whole model is written anew whenever somebody begins to read it, as nothing tells that a fused optimiser has moved what it
was made of; but once for all slices of an update, in which weights stand still. A pass with a gradient outside of an update makes
what it reads itself: nobody may write over it before the way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from upslope.policies.forward.gradient_sums import update_now
from upslope.policies.forward.layer_ops import Matrix
from upslope.runtime import torch_private

if TYPE_CHECKING:
    from upslope.policies.forward.architecture import Architecture

ALIGNED = 64
"""Matrices begin at multiples of so many numbers, as kernels read them fastest."""


class HeldWeights:
    """Some matrices, each of the parts that share an input, in one stretch of memory."""

    def __init__(self, several: list[tuple[Tensor, ...]], dtype: torch.dtype):
        self.dtype = dtype
        self._sources = [part for parts in several for part in parts]
        sizes = [sum(part.numel() for part in parts) for parts in several]
        rooms = [-(-size // ALIGNED) * ALIGNED for size in sizes]
        memory = torch.empty(sum(rooms), dtype=dtype, device=self._sources[0].device).split(rooms)
        self.matrices, self._places = [], list[Tensor]()
        for parts, size, room in zip(several, sizes, memory, strict=True):
            low = room[:size].view(-1, *parts[0].shape[1:])
            self.matrices.append(Matrix(low, parts))
            self._places += low.split([len(part) for part in parts])
        self._update: object | None = None

    def of_now(self) -> list[Matrix]:
        """The matrices, with the weights as they are."""
        update = update_now()
        if update is None or update is not self._update:
            with torch.no_grad():
                torch_private.foreach_copy_(self._places, [source.detach() for source in self._sources])
            self._update = update
        return self.matrices

    @property
    def learns(self) -> bool:
        """Whether all that it was made of learns."""
        return all(source.requires_grad for source in self._sources)

    def holds(self, several: list[tuple[Tensor, ...]], dtype: torch.dtype) -> bool:
        """Whether it is of just these weights, which are still where they were."""
        sources = [part for parts in several for part in parts]
        return dtype == self.dtype and len(sources) == len(self._sources) and all(map(_same, sources, self._sources))


def held_matrices(body: Architecture, several: list[tuple[Tensor, ...]], dtype: torch.dtype) -> list[Matrix]:
    """The matrices of these parts as the model holds them from now on; the head is the last."""
    if body.held is None or not body.held.holds(several, dtype):
        body.held = None  # its memory is free before the new one takes some
        body.held = HeldWeights(several, dtype)
    return body.held.of_now()


def held_head(body: Architecture, dtype: torch.dtype) -> Tensor | None:
    """The head in this precision, if the model holds it, as it was when its layers were last asked for."""
    return body.held.matrices[-1].low if body.held is not None and reads_held(body, dtype) else None


def reads_held(body: Architecture, dtype: torch.dtype) -> bool:
    """Whether the pass that begins here reads what the model holds."""
    return (update_now() is not None or not torch.is_grad_enabled()) and holds_weights(body, dtype)


def holds_weights(body: Architecture, dtype: torch.dtype) -> bool:
    """Whether a model holds its weights in this precision: on a GPU, if all of them learn in another."""
    weight = body.head.weight
    if not serves(weight) or weight.dtype == dtype or body.apart:
        return False
    return _all_learn(body) if body.held is None else body.held.learns


def serves(weight: Tensor) -> bool:
    return weight.is_cuda


def _all_learn(body: Architecture) -> bool:
    return all(isinstance(each, nn.Parameter) and each.requires_grad for each in body.model.parameters())


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other and one.device == other.device
