"""Decoding weights: a model's layers in the precision of the products, at addresses that do not change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.blocks import Block, blocks_of, norm_weight
from upslope.policies.forward.layer_ops import Matrix
from upslope.runtime import torch_private


class Weights:
    """A model's weights. On a GPU `refresh` keeps their addresses: recorded graphs go on reading them.

    Args:
        positions: how many places of a text there may be.
    """

    def __init__(self, body: Architecture, positions: int, dtype: torch.dtype):
        self.body, self.dtype, self.positions = body, dtype, positions
        self.device = body.head.weight.device
        self.cos, self.sin = body.rotations(positions, self.device, torch.promote_types(dtype, torch.float32))
        self.blocks: list[Block] = []
        self._ends: tuple[Tensor, ...] = ()
        self.refresh()

    def serves(self, body: Architecture) -> bool:
        """Whether these can be the weights of another model in its place: one of the same sizes, on the same device."""
        if body is self.body:
            return True
        same = body.head.weight.device == self.device and body.head.weight.shape == self.body.head.weight.shape
        return same and body.model.config.to_dict() == self.body.model.config.to_dict()

    def refresh(self, body: Architecture | None = None) -> None:
        """Take the weights as they are now, of another model that they serve if one is given."""
        self.body = body or self.body
        body, table = self.body, self.body.stack.embed_tokens
        with torch.no_grad():
            scale = float(getattr(table, "embed_scale", 1.0))
            embedding = table.weight.to(self.dtype)
            ends = (
                embedding * scale if scale != 1 else embedding,
                norm_weight(body, body.stack.norm),
                body.head.weight.to(self.dtype),
            )
            if self.device.type != "cuda":
                self.blocks, self._ends = blocks_of(body, self.dtype), ends
            elif not self.blocks:
                self.blocks, self._ends = [_copied(block) for block in blocks_of(body, self.dtype)], tuple(map(_copied, ends))
            else:
                own, new = [*self.blocks, self._ends], [*blocks_of(body, self.dtype), ends]
                torch_private.foreach_copy_([*_tensors(own)], [*_tensors(new)])
        self.embedding, self.last_norm, self.head = self._ends


def _tensors(several: Iterable[Any]) -> Iterator[Tensor]:
    """What products read of some blocks and tuples of tensors."""
    for part in itertools.chain.from_iterable(several):
        if part is not None:
            yield part.low if isinstance(part, Matrix) else part


def _copied(found: Any) -> Any:
    """A block or a tensor at an address of its own."""
    if isinstance(found, Block):
        return Block(*map(_copied, found))
    if isinstance(found, Matrix):
        return Matrix(found.low.clone(), ())
    return None if found is None else found.detach().clone()
