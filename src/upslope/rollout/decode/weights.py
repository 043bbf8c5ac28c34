"""Decoding weights: a model's layers in the precision of the products, at addresses that do not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward import fp8
from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.blocks import Block, blocks_of, norm_weight
from upslope.policies.forward.layer_ops import Matrix
from upslope.policies.forward.low_rank import LowRank
from upslope.runtime import torch_private


class Weights:
    """A model's weights. On a GPU `refresh` keeps their addresses: recorded graphs go on reading them.

    A model that learns on a GPU holds its matrices in the precision of products (`held_weights`): they are read where learning
    reads them. Of a model whose adapters are computed apart, the matrices are the model's own, which never change, and stay where
    they are; adapters have addresses of their own here and are copied to them.

    Args:
        positions: how many places of a text there may be.
        fixed: whether addresses stay; left out, on a GPU.
        shared: whether matrices that the model holds are read there. If not, other models' can be put in their place.
        in_eight_bits: whether steps multiply in eight bits: with all of a layer's matrices but that behind its attention, which is
            small. Prompts are read, and the head multiplies, as they would otherwise.
    """

    def __init__(
        self, body: Architecture, positions: int, dtype: torch.dtype, fixed: bool | None = None, shared: bool = True,
        in_eight_bits: bool = False,
    ):  # fmt: skip
        self.body, self.dtype, self.positions, self.in_eight_bits = body, dtype, positions, in_eight_bits
        self.shared = shared and body.holds_weights(dtype)
        self.device = body.head.weight.device
        self.fixed = self.device.type == "cuda" if fixed is None else fixed
        self.cos, self.sin = body.rotations(positions, self.device, torch.promote_types(dtype, torch.float32))
        self.blocks: list[Block] = []
        """Layers that prompts are read with."""
        self.step_blocks: list[Block] = []
        """The same, for steps of decoding."""
        self._ends: tuple[Tensor, ...] = ()
        self.refresh()

    def serves(self, body: Architecture) -> bool:
        """Whether these can be the weights of another model in its place: one of the same sizes, on the same device."""
        if body is self.body:
            return True
        if self.shared:
            return False
        if body.apart or self.body.apart:  # another's matrices cannot be put in the place of those that the model itself has
            return body.apart and self.body.apart and _addresses(body) == _addresses(self.body)
        same = body.head.weight.device == self.device and body.head.weight.shape == self.body.head.weight.shape
        return same and body.model.config.to_dict() == self.body.model.config.to_dict()

    def refresh(self, body: Architecture | None = None) -> None:
        """Take the weights as they are now, of another model that they serve if one is given."""
        self.body = body or self.body
        body = self.body
        with torch.no_grad():
            blocks = blocks_of(body, self.dtype)
            if not self.fixed or not self.blocks:
                self.blocks = [self._copied(block) for block in blocks] if self.fixed else blocks
                ends = self._model_ends()
                self._ends = tuple(map(self._copied, ends)) if self.fixed and not body.apart else ends
            elif body.apart:  # what stands before and behind the layers never changes
                _copy([*_tensors(self.blocks)], [*_tensors(blocks)])
            else:
                _copy([*_tensors([*self.blocks, self._ends])], [*_tensors([*blocks, self._model_ends()])])
            self._quantize()
        self.embedding, self.last_norm, self.head = self._ends

    def _quantize(self) -> None:
        """Puts what steps multiply with in eight bits: codes beside the matrices, for kernels; or what codes stand for in their
        place."""
        if not self.in_eight_bits:
            self.step_blocks = self.blocks
        elif not self.fixed:
            self.step_blocks = []  # their memory is free before others take some
            self.step_blocks = [_changed(block, self._as_rounded) for block in self.blocks]
        elif not self.step_blocks:
            self.step_blocks = [_changed(block, _with_codes) for block in self.blocks]
        elif not self.body.apart:  # beside adapters matrices never change
            for matrix in (matrix for block in self.step_blocks for matrix in (block.qkv, block.gate_up, block.down)):
                fp8.quantize(matrix.low, matrix.fp8)

    def _as_rounded(self, matrix: Matrix) -> Matrix:
        codes = fp8.quantize(matrix.low)
        return matrix._replace(low=fp8.dequantize(codes, self.dtype), fp8=codes)

    def _model_ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings, the last norm and the head."""
        body, table = self.body, self.body.stack.embed_tokens
        scale = float(getattr(table, "embed_scale", 1.0))
        held = body.held_head(self.dtype) if self.shared else None
        head = body.head.weight.to(self.dtype) if held is None else held
        embedding = head if held is not None and table.weight is body.head.weight else table.weight.to(self.dtype)
        return embedding * scale if scale != 1 else embedding, norm_weight(body, body.stack.norm), head

    def _copied(self, found: Any) -> Any:
        """A block or a tensor at an address of its own, but for matrices that the model holds."""
        if isinstance(found, Block):
            return Block(*map(self._copied, found))
        if isinstance(found, Matrix) and found.adapter is not None:
            adapter = found.adapter
            return Matrix(found.low, (), LowRank(adapter.a.clone(), adapter.b.clone(), (), adapter.scales), found.packed)
        if isinstance(found, Matrix):
            return Matrix(found.low if self.shared else found.low.clone(), ())
        if found is None or (self.shared and self._is_held(found)):
            return found
        return found.detach().clone()

    def _is_held(self, found: Tensor) -> bool:
        head = self.body.held_head(self.dtype)
        return head is not None and found.data_ptr() == head.data_ptr()


def _with_codes(matrix: Matrix) -> Matrix:
    return matrix._replace(fp8=fp8.quantize(matrix.low))


def _changed(block: Block, change: Callable[[Matrix], Matrix]) -> Block:
    """The layer with other matrices where sampling may round them."""
    return block._replace(qkv=change(block.qkv), gate_up=change(block.gate_up), down=change(block.down))


def _tensors(several: Iterable[Any]) -> Iterator[Tensor]:
    """What products read of some blocks and tuples of tensors."""
    for part in itertools.chain.from_iterable(several):
        if isinstance(part, Matrix) and part.adapter is not None:  # the matrix itself never changes
            yield from (part.adapter.a, part.adapter.b)
        elif part is not None:
            yield part.low if isinstance(part, Matrix) else part


def _addresses(body: Architecture) -> list[int]:
    """Where the weights are that adapters are computed beside, and the ends of the model."""
    matrices = (layer.mlp.down_proj.base_layer.weight for layer in body.layers)
    return [weight.data_ptr() for weight in (body.head.weight, body.stack.embed_tokens.weight, *matrices)]


def _copy(places: list[Tensor], sources: list[Tensor]) -> None:
    """Puts tensors to places, but for those that are there already."""
    apart = [both for both in zip(places, sources, strict=True) if both[0].data_ptr() != both[1].data_ptr()]
    if apart:
        torch_private.foreach_copy_(*map(list, zip(*apart, strict=True)))
