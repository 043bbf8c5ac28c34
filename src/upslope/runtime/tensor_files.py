"""Tensors in files of the safetensors format, written and read in one pass, so that a digest can be taken of those very bytes.

The library of that name writes and reads by itself; a digest would then need a second reading, which sees the machine's memory of
the file rather than what went to the disk, and doubles the time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.staging import Sink, as_bytes, hand_on

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_HEADER = 100_000_000
"""Bytes of a header; the format's own limit."""


def write_tensors(write: Sink, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """The file's bytes, handed on piece by piece."""
    # Wide types first, so that every tensor stands at a multiple of its own width.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: JsonDict = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write(struct.pack("<Q", len(text)))
    write(text)
    hand_on(write, (tensors[name] for name in order))


def read_tensors(file: BinaryIO, seen: Sink) -> dict[str, Tensor]:
    """The tensors of a file that is open at its beginning; ``seen`` is given every byte in order.

    Raises:
        ValueError: where the file is cut short or is no such file.
    """
    first = _exactly(file, 8, seen)
    (length,) = struct.unpack("<Q", first)
    if length > MOST_HEADER:
        raise ValueError(f"its header would have {length:,} bytes")
    header = json.loads(_exactly(file, length, seen))
    entries = _entries(header)
    found, place = dict[str, Tensor](), 0
    for name, (dtype, shape, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        tensor = torch.empty(shape, dtype=dtype)
        if begin != place or end - begin != tensor.numel() * tensor.element_size():
            raise ValueError(f"its header is wrong about {name!r}")
        room = as_bytes(tensor)
        if file.readinto(room) != len(room):  # type: ignore[attr-defined]
            raise ValueError("it is cut short")
        seen(room)
        found[name], place = tensor, end
    if rest := file.read(1):
        seen(rest)
        raise ValueError("there is more in it than its header says")
    return found


def read_header(path: Path) -> dict[str, torch.dtype]:
    """The tensors of a file by name, and what kind of number each holds.

    Raises:
        ValueError: where it is no such file.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", _exactly(file, 8, lambda data: None))
        if length > MOST_HEADER:
            raise ValueError(f"its header would have {length:,} bytes")
        return {name: entry[0] for name, entry in _entries(json.loads(_exactly(file, length, lambda data: None))).items()}


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The tensors of a file by name, and the shape of each.

    Raises:
        ValueError: where it is no such file, or holds less than its header says.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", _exactly(file, 8, lambda data: None))
        if length > MOST_HEADER:
            raise ValueError(f"its header would have {length:,} bytes")
        entries = _entries(json.loads(_exactly(file, length, lambda data: None)))
    if path.stat().st_size < 8 + length + max((end for _, _, _, end in entries.values()), default=0):
        raise ValueError("it is cut short")
    return {name: shape for name, (_, shape, _, _) in entries.items()}


class TensorFile:
    """A file of which tensors are read one by one. Use it in a ``with`` block.

    Raises:
        ValueError: where it is no such file, or holds less than its header says.
    """

    def __init__(self, path: Path):
        self._file = path.open("rb")
        try:
            (length,) = struct.unpack("<Q", _exactly(self._file, 8, lambda data: None))
            if length > MOST_HEADER:
                raise ValueError(f"its header would have {length:,} bytes")
            entries = _entries(json.loads(_exactly(self._file, length, lambda data: None)))
            last = max((end for _, _, _, end in entries.values()), default=0)
            if path.stat().st_size < 8 + length + last:
                raise ValueError("it is cut short")
            for name, (dtype, shape, begin, end) in entries.items():
                if end - begin != math.prod(shape) * dtype.itemsize:
                    raise ValueError(f"its header is wrong about {name!r}")
        except BaseException:
            self._file.close()
            raise
        self._data = 8 + length
        self.entries = {name: (dtype, tuple(shape), begin) for name, (dtype, shape, begin, _) in entries.items()}
        """Of each tensor: kind of number, shape, and where it begins."""

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def read(self, name: str, memory: Tensor) -> Tensor:
        """A tensor as it is in the file, at the beginning of some bytes: there until they are used for another."""
        dtype, shape, begin = self.entries[name]
        tensor = memory[: self.size(name)].view(dtype).view(shape)
        room = as_bytes(tensor)
        self._file.seek(self._data + begin)
        if self._file.readinto(room) != len(room):
            raise ValueError("it is cut short")
        return tensor

    def size(self, name: str) -> int:
        """Bytes of a tensor."""
        dtype, shape, _ = self.entries[name]
        return math.prod(shape) * dtype.itemsize


def _entries(header: Any) -> dict[str, tuple[torch.dtype, list[int], int, int]]:
    found = {}
    try:
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                shape = [int(size) for size in entry["shape"]]
                if not 0 <= begin <= end or any(size < 0 for size in shape):
                    raise ValueError(f"its header is wrong about {name!r}")
                found[name] = (DTYPES[entry["dtype"]], shape, int(begin), int(end))
    except (AttributeError, KeyError, TypeError) as problem:
        raise ValueError(f"its header cannot be read ({problem!r})") from None
    return found


def _exactly(file: BinaryIO, length: int, seen: Sink) -> bytes:
    found = file.read(length)
    seen(found)
    if len(found) != length:
        raise ValueError("it is cut short")
    return found
