"""Weights in the precision of products, held once: learning and sampling read the same memory, whose addresses stay.

The weights that learn are in float32. Products want them in half precision, and those that share an input as one matrix. Such a
set of a whole model is written anew whenever somebody begins to read it, as nothing tells that a fused optimiser has moved what it
was made of; but once for all slices of an update, in which weights stand still. A pass with a gradient outside of an update makes
what it reads itself: nobody may write over it before the way back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.policies.forward.gradient_sums import update_now
from upslope.policies.forward.layer_ops import Matrix
from upslope.runtime import torch_private

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


def serves(weight: Tensor) -> bool:
    """Whether a model with such weights holds a set of them in the precision of products."""
    return weight.is_cuda


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other and one.device == other.device
