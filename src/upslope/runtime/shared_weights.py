"""Weights by version in memory that processes share: no file is written, and nothing is left behind when they are gone."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.tensor_files import DTYPES, NAMES

ALIGNED = 64
"""Bytes at a multiple of which each tensor begins."""
PIECE = 1 << 20
"""Numbers that are copied and added up at a time."""


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
        self._memories: dict[int, mmap.mmap] = {}
        """By file. They stay mapped: to map them anew for each version took longer than to copy the weights."""
        self._free: list[tuple[int, int]] = []
        """Memory of versions that nobody needs any more, to be written again."""
        self._pinned: set[int] = set()

    @property
    def newest(self) -> int | None:
        return max(self.versions, default=None)

    def publish(self, version: int, weights: Mapping[str, Tensor], needed: Iterable[int]) -> None:
        """Copies the weights; of the versions before, those that are ``needed`` stay."""
        self.drop_but(needed)
        table, size = layout(weights)
        file = self._memory(size, any(tensor.is_cuda for tensor in weights.values()))
        found = fill(torch.frombuffer(self._memories[file], dtype=torch.uint8), table, weights)
        self.versions[version] = WeightsInMemory(file, size, table, found)

    def drop_but(self, needed: Iterable[int]) -> None:
        """Frees the memory of versions that nobody needs."""
        wanted = {*needed}
        for version in [each for each in self.versions if each not in wanted]:
            old = self.versions.pop(version)
            self._free.append((old.file, old.size))

    def _memory(self, size: int, for_gpu: bool) -> int:
        for place, (file, own) in enumerate(self._free):
            if own == size:
                del self._free[place]
                return file
        file = os.memfd_create("upslope-weights") if hasattr(os, "memfd_create") else _unnamed_file()
        os.ftruncate(file, size)
        self._memories[file] = mmap.mmap(file, size)
        if for_gpu:
            pin(torch.frombuffer(self._memories[file], dtype=torch.uint8))
            self._pinned.add(file)
        return file

    def close(self) -> None:
        for file, memory in self._memories.items():
            if file in self._pinned:
                unpin(torch.frombuffer(memory, dtype=torch.uint8))
            with suppress(BufferError):  # somebody still looks at it; it goes when they do
                memory.close()
            os.close(file)
        self.versions, self._free, self._memories, self._pinned = {}, [], {}, set()


class ReadWeights:
    """The memory that another process publishes weights in, as far as it was shown here; it stays mapped, as it is used again.

    Args:
        for_gpu: Weights go from there to a GPU.
    """

    def __init__(self, for_gpu: bool = False) -> None:
        self.for_gpu = for_gpu
        self._memories: dict[tuple[int, int], mmap.mmap] = {}

    def of(self, file: int, told: Mapping[str, Any]) -> dict[str, Tensor]:
        """The weights of a version, as views of the shared memory. The file is closed."""
        place = os.fstat(file).st_ino, told["size"]
        if place not in self._memories:
            self._memories[place] = mmap.mmap(file, told["size"], prot=mmap.PROT_READ | mmap.PROT_WRITE)
            if self.for_gpu:
                pin(torch.frombuffer(self._memories[place], dtype=torch.uint8))
        os.close(file)
        return views(torch.frombuffer(self._memories[place], dtype=torch.uint8), told["table"])


def pin(memory: Tensor) -> None:
    """Lets a GPU copy to and from memory at its full speed. Where that is not allowed, copies are slower and that is all."""
    torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)


def unpin(memory: Tensor) -> None:
    """Undoes `pin`, before the memory goes."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def checksum(weights: Mapping[str, Tensor]) -> int:
    """Of all bits, tensor by tensor: two processes with the same number hold the same weights, but for changes that cancel out."""
    return _of_all({name: int(_bits(tensor).sum(dtype=torch.int64)) for name, tensor in weights.items()})


def take_over(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> int:
    """Copies weights to where one's own stand, by name, and gives the checksum of what stands there then."""
    with torch.no_grad():
        if any(tensor.is_cuda for tensor in (*own.values(), *given.values())):
            return _taken_over_by_gpu(own, given)
        return _of_all({name: _copied(tensor, given[name]) for name, tensor in own.items()})


def _taken_over_by_gpu(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> int:
    """To or from a GPU, which adds up its own side: what it sends, or what has arrived. It is waited for once, at the end."""
    sums = []
    for name, tensor in own.items():
        tensor.copy_(given[name], non_blocking=True)
        sums.append(_bits(tensor if tensor.is_cuda else given[name]).sum(dtype=torch.int64))
    found = torch.stack([each.to(sums[0].device) for each in sums]).tolist()
    return _of_all(dict(zip(own, found, strict=True)))


def _of_all(sums: Mapping[str, int]) -> int:
    total = 0
    for name, found in sums.items():
        total = (total * 1_000_003 + found + len(name)) % (1 << 61)
    return total


def _copied(own: Tensor, given: Tensor) -> int:
    """Copies a tensor, and adds up its bits piece by piece while they are still in the processor's cache."""
    own, given = own.detach(), given.detach()
    even = own.storage_offset() * own.element_size() % 8 == 0 and own.numel() * own.element_size() % 8 == 0
    if not (even and own.is_contiguous() and given.is_contiguous()):
        own.copy_(given)
        return int(_bits(own).sum(dtype=torch.int64))
    total = torch.zeros((), dtype=torch.int64)
    for mine, theirs in zip(own.view(-1).split(PIECE), given.view(-1).split(PIECE), strict=True):
        mine.copy_(theirs)
        total += mine.view(torch.int64).sum()
    return int(total)


def _bits(tensor: Tensor) -> Tensor:
    """A tensor as whole numbers, eight bytes each where they come out even: half as many to add up as of four."""
    flat, size = tensor.detach().reshape(-1), tensor.element_size()
    if flat.numel() * size % 8:
        return flat.view({4: torch.int32, 2: torch.int16, 1: torch.int8}[size])
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    return flat.view(torch.int64)


def layout(weights: Mapping[str, Tensor]) -> tuple[JsonDict, int]:
    """Where each tensor stands in one piece of memory (its dtype, shape and first byte), and the size of that."""
    table: JsonDict = {}
    end = 0
    for name, tensor in weights.items():
        begin = -(-end // ALIGNED) * ALIGNED
        table[name] = [NAMES[tensor.dtype], list(tensor.shape), begin]
        end = begin + tensor.numel() * tensor.element_size()
    return table, max(end, 1)


def fill(room: Tensor, table: JsonDict, weights: Mapping[str, Tensor]) -> int:
    """Copies weights into memory that is laid out for them; their checksum."""
    return take_over(views(room, {name: table[name] for name in weights}), weights)


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
