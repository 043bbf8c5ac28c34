"""Weights by version in memory that processes share: no file is written, and nothing is left behind when they are gone."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.tensor_files import DTYPES, NAMES

ALIGNED = 64
"""Bytes at a multiple of which each tensor begins."""


@dataclass
class WeightsInMemory:
    """One version: an open file of shared memory, and what stands where in it.

    Fields:
        table: By name the dtype, shape and first byte of each tensor.
        checksum: Of all of them; see `checksum`.
    """

    file: int
    size: int
    table: JsonDict
    checksum: int

    def plain(self) -> JsonDict:
        """What goes to another process beside the file."""
        return {"size": self.size, "table": self.table, "checksum": self.checksum}


class SharedWeights:
    """The versions of a policy's weights that somebody may still have to sample with."""

    def __init__(self) -> None:
        self.versions: dict[int, WeightsInMemory] = {}
        self._free: list[tuple[int, int]] = []
        """Memory of versions that nobody needs any more, to be written again."""

    @property
    def newest(self) -> int | None:
        return max(self.versions, default=None)

    def publish(self, version: int, weights: Mapping[str, Tensor], needed: Iterable[int]) -> None:
        """Copies the weights; of the versions before, those that are ``needed`` stay."""
        self.drop_but(needed)
        table, size = layout(weights)
        file = self._memory(size)
        with mmap.mmap(file, size) as memory:
            room = torch.frombuffer(memory, dtype=torch.uint8)
            fill(room, table, weights)
            del room  # the map cannot be closed while somebody looks at it
        self.versions[version] = WeightsInMemory(file, size, table, checksum(weights))

    def drop_but(self, needed: Iterable[int]) -> None:
        """Frees the memory of versions that nobody needs."""
        wanted = {*needed}
        for version in [each for each in self.versions if each not in wanted]:
            old = self.versions.pop(version)
            self._free.append((old.file, old.size))

    def _memory(self, size: int) -> int:
        for place, (file, own) in enumerate(self._free):
            if own == size:
                del self._free[place]
                return file
        file = os.memfd_create("upslope-weights") if hasattr(os, "memfd_create") else _unnamed_file()
        os.ftruncate(file, size)
        return file

    def close(self) -> None:
        for file in [own.file for own in self.versions.values()] + [file for file, _ in self._free]:
            os.close(file)
        self.versions, self._free = {}, []


def read_weights(file: int, told: Mapping[str, Any]) -> tuple[dict[str, Tensor], mmap.mmap]:
    """The weights of a version that another process has published, as views of the shared memory; close that when done."""
    memory = mmap.mmap(file, told["size"], prot=mmap.PROT_READ | mmap.PROT_WRITE)
    room = torch.frombuffer(memory, dtype=torch.uint8)
    return views(room, told["table"]), memory


def checksum(weights: Mapping[str, Tensor]) -> int:
    """Of all bits, tensor by tensor: two processes with the same number hold the same weights, but for changes that cancel out."""
    total = 0
    for name, tensor in weights.items():
        width = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
        bits = tensor.detach().contiguous().view(width)
        total = (total * 1_000_003 + int(bits.sum(dtype=torch.int64)) + len(name)) % (1 << 61)
    return total


def layout(weights: Mapping[str, Tensor]) -> tuple[JsonDict, int]:
    """Where each tensor stands in one piece of memory (its dtype, shape and first byte), and the size of that."""
    table: JsonDict = {}
    end = 0
    for name, tensor in weights.items():
        begin = -(-end // ALIGNED) * ALIGNED
        table[name] = [NAMES[tensor.dtype], list(tensor.shape), begin]
        end = begin + tensor.numel() * tensor.element_size()
    return table, max(end, 1)


def fill(room: Tensor, table: JsonDict, weights: Mapping[str, Tensor]) -> None:
    """Copies weights into memory that is laid out for them."""
    for name, tensor in weights.items():
        _view(room, table[name]).copy_(tensor.detach())


def views(room: Tensor, table: JsonDict) -> dict[str, Tensor]:
    """The weights in such memory, not copied."""
    return {name: _view(room, entry) for name, entry in table.items()}


def _view(room: Tensor, entry: list[Any]) -> Tensor:
    dtype, shape, begin = DTYPES[entry[0]], entry[1], entry[2]
    size = torch.Size(shape).numel() * dtype.itemsize
    return room[begin : begin + size].view(dtype).view(shape)


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
