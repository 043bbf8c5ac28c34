"""Packed matrices: those that adapters are computed beside, in four bits (`nf4`), unpacked whenever somebody multiplies with them.

One at a time is unpacked, into memory that all matrices of a model take turns with (`Scratch`): to sample, in the forward pass of
learning and once more in its backward pass. Nothing unpacked is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward import nf4
from upslope.policies.forward.nf4 import BLOCK, GROUP, Codes
from upslope.policies.forward.triton import launch


class Scratch:
    """Memory that holds one matrix of a model at a time. On a GPU its address stays: recorded graphs write to it and read it.

    Whoever unpacks a matrix multiplies with it at once, before anybody unpacks another. On a GPU that holds because sampling and
    learning of one process follow each other, in one stream; those who sample beside others that learn are processes of their own,
    with memory of their own. On a CPU each thread has a scratch of its own.
    """

    def __init__(self) -> None:
        self.size = 0
        """Numbers of the largest matrix."""
        self._rooms: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}

    def room(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Where so many numbers go."""
        key = dtype, device, threading.get_ident() if device.type == "cpu" else 0
        room = self._rooms.get(key)
        if room is None or len(room) < size:
            with torch.inference_mode(False):
                room = self._rooms[key] = torch.empty(max(self.size, size), dtype=dtype, device=device)
        return room[:size]

    @property
    def held_bytes(self) -> int:
        return sum(room.nbytes for room in self._rooms.values())


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """Matrices that multiply the same input, one above the other, in four bits. Each is quantised by itself.

    Fields:
        rows: of each of them.
        dtype: of products.
        codes, scales: of all of them, one behind the other; each begins with a new block.
        tops, offsets: of each group of scales (`upslope.policies.forward.nf4.Codes`).
        places: of each group its first block, the first of its numbers and how many these are ``[groups, 3]``.
    """

    rows: tuple[int, ...]
    columns: int
    dtype: torch.dtype
    codes: Tensor
    scales: Tensor
    tops: Tensor
    offsets: Tensor
    places: Tensor
    scratch: Scratch

    @staticmethod
    def of(parts: Sequence[Tensor], device: torch.device, dtype: torch.dtype, scratch: Scratch) -> PackedMatrix:
        """Of matrices wherever they are, on a device. They are rounded to bfloat16 before: so a model gives the same codes from
        a file of any precision and for products in any."""
        rows, columns = tuple(map(len, parts)), parts[0].shape[1]
        held = [nf4.quantize(part.detach().to(device, torch.bfloat16)) for part in parts]
        offsets = torch.cat([each.offset.expand(len(each.tops)) for each in held])
        places = torch.tensor([*_places(rows, columns)], device=device)
        scratch.size = max(scratch.size, sum(rows) * columns)
        codes, scales, tops = (torch.cat(column) for column in list(zip(*held, strict=True))[:3])
        return PackedMatrix(rows, columns, dtype, codes, scales, tops, offsets, places, scratch)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(self.rows), self.columns

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def is_on(self, device: torch.device) -> bool:
        return self.device.type == device.type and device.index in (None, self.device.index)

    @property
    def held_bytes(self) -> int:
        return sum(each.nbytes for each in self._tensors())

    def unpacked(self) -> Tensor:
        """All of them ``[out, in]``, until anybody unpacks the next matrix of the model."""
        high, wide = self.shape
        room = self.scratch.room(high * wide, self.dtype, self.device)
        if launch.helps(self.codes):
            launch.unpack_nf4(self.codes, self.scales, self.tops, self.offsets, self.places, room)
        else:
            for held, place in zip(self._parts(), room.split([rows * wide for rows in self.rows]), strict=True):
                nf4.dequantize(held, place)
        return room.view(high, wide)

    def part(self, number: int) -> Tensor:
        """One of them in float32, in memory of its own."""
        room = torch.empty(self.rows[number] * self.columns, device=self.device)
        return nf4.dequantize([*self._parts()][number], room).view(-1, self.columns)

    def to(self, device: torch.device, dtype: torch.dtype, scratch: Scratch) -> PackedMatrix:
        """The same codes elsewhere, for products in another precision."""
        scratch.size = max(scratch.size, sum(self.rows) * self.columns)
        names = ("codes", "scales", "tops", "offsets", "places")
        moved: dict[str, Any] = {name: each.to(device) for name, each in zip(names, self._tensors(), strict=True)}
        return dataclasses.replace(self, dtype=dtype, scratch=scratch, **moved)

    def in_dtype(self, dtype: torch.dtype) -> PackedMatrix:
        """The same for products in this precision."""
        return self if dtype == self.dtype else dataclasses.replace(self, dtype=dtype)

    def stand_in(self, rows: int) -> Tensor:
        """A tensor of so many rows that takes the memory of one number, which is none: whoever multiplied with it would notice."""
        return torch.full((), torch.nan, dtype=self.dtype, device=self.device).expand(rows, self.columns)

    @functools.cached_property
    def nothing(self) -> Tensor:
        """The same of all of them."""
        return self.stand_in(sum(self.rows))

    def __deepcopy__(self, memo: object) -> PackedMatrix:
        """It never changes."""
        return self

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.codes, self.scales, self.tops, self.offsets, self.places

    def _parts(self) -> Iterator[Codes]:
        blocks = [-(-rows * self.columns // BLOCK) for rows in self.rows]
        groups = [-(-count // GROUP) for count in blocks]
        codes = self.codes.split([count * BLOCK // 2 for count in blocks])
        columns = (codes, self.scales.split(blocks), self.tops.split(groups), self.offsets.split(groups))
        for code, scale, top, offset in zip(*columns, strict=True):
            yield Codes(code, scale, top, offset[0])


def _places(rows: Sequence[int], columns: int) -> Iterator[tuple[int, int, int]]:
    """Of each group of each matrix: its first block, its first number, how many numbers."""
    first_block = first = 0
    for count in (each * columns for each in rows):
        for start in range(0, count, BLOCK * GROUP):
            yield first_block + start // BLOCK, first + start, min(BLOCK * GROUP, count - start)
        first_block, first = first_block - (-count // BLOCK), first + count


@dataclass(frozen=True)
class PackedPart:
    """What a linear module whose weight is packed has in its place: one of some matrices."""

    matrix: PackedMatrix
    number: int

    @property
    def rows(self) -> int:
        return self.matrix.rows[self.number]

    def unpacked(self) -> Tensor:
        """In float32, in memory of its own."""
        return self.matrix.part(self.number)


def stands_in(weight: Tensor) -> bool:
    """Whether it is the shape of a matrix that is packed, without numbers."""
    return weight.dim() == 2 and weight.stride() == (0, 0)


PACKED = "nf4"
"""The name under which a module has its `PackedPart`."""


def packed_part(module: Any) -> PackedPart | None:
    """Of a linear module its weight in four bits, if it is held so."""
    return getattr(module, PACKED, None)


def pack_together(modules: Sequence[Any], device: torch.device, dtype: torch.dtype, scratch: Scratch) -> None:
    """Packs the weights of modules that share an input, or moves what is packed. The parameters stay, as shapes without numbers."""
    held = packed_part(modules[0])
    if held is None:
        matrix = PackedMatrix.of([module.weight for module in modules], device, dtype, scratch)
    elif held.matrix.is_on(device) and held.matrix.dtype == dtype:
        return
    else:
        matrix = held.matrix.to(device, dtype, scratch)
    for number, module in enumerate(modules):
        setattr(module, PACKED, PackedPart(matrix, number))
        module.weight.data = matrix.stand_in(matrix.rows[number])


def plain_weight(module: Any) -> Tensor:
    """The matrix that a linear module multiplies with: of a packed one, unpacked."""
    held = packed_part(module)
    return module.weight if held is None else held.unpacked()


def weight_bytes(model: Any) -> int:
    """Bytes of a model's weights, each counted once however many parameters lie in it, packed ones as they are packed."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}
    parts = [held for module in model.modules() if (held := packed_part(module)) is not None]
    packed = {id(held.matrix): held.matrix for held in parts}
    rooms = {id(each.scratch): each.scratch for each in packed.values()}
    return sum(itertools.chain(
        storages.values(), (each.held_bytes for each in packed.values()), (each.held_bytes for each in rooms.values())
    ))  # fmt: skip
