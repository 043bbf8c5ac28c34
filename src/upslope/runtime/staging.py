"""Tensors handed on as bytes. Those of a GPU come through a few pieces of pinned memory: while one is written others are under way.

None of them is ever whole in the memory of the host, whose first use of so much of it would take longer than the copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 24
"""Bytes that are copied and written together."""
PIECES = 8
"""Of pinned memory."""
AHEAD = 3
"""Pieces that are under way while another is written."""

Sink = Callable[[Any], object]
"""Takes bytes, or what can be seen as bytes. What it gives back is a future if somebody reads them until that is done."""


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def hand_on(write: Sink, tensors: Iterable[Tensor]) -> None:
    """The bytes of some tensors, one behind the other. ``write`` may read those of tensors on the CPU for as long as it likes."""
    staging = Staging(write, PIECE, PIECES, AHEAD)
    for tensor in tensors:
        if in_pieces(tensor):
            staging.send(tensor)
        else:
            staging.finish()
            write(as_bytes(tensor.detach().cpu().contiguous()))
    staging.finish()


def in_pieces(tensor: Tensor) -> bool:
    """Whether a tensor is copied piece by piece."""
    return tensor.is_cuda and tensor.is_contiguous()


class Staging:
    """Pieces of memory that tensors go through, each again when nobody reads it any more.

    Args:
        piece: bytes of one.
        pieces: how many there are; more than those that are under way and the one that is written.
        ahead: how many are under way while one is written.
    """

    def __init__(self, write: Sink, piece: int, pieces: int, ahead: int):
        self._write, self._piece, self._ahead, self._unmade = write, piece, ahead, pieces
        self._under_way: deque[tuple[Tensor, Tensor, torch.cuda.Event | None]] = deque()
        """Memory, the part of it that is filled, and what comes behind the copy."""
        self._read: deque[tuple[Tensor, object]] = deque()
        """Memory that was written, and what the writer said."""

    def send(self, tensor: Tensor) -> None:
        """Copies a contiguous tensor, and writes what was copied before."""
        for piece in tensor.detach().reshape(-1).view(torch.uint8).split(self._piece):
            memory = self._free(piece.is_cuda)
            part = memory[: len(piece)]
            part.copy_(piece, non_blocking=True)
            copied = torch.cuda.current_stream(piece.device).record_event() if piece.is_cuda else None
            self._under_way.append((memory, part, copied))
            if len(self._under_way) > self._ahead:
                self._write_next()

    def finish(self) -> None:
        """Writes what is under way."""
        while self._under_way:
            self._write_next()

    def _write_next(self) -> None:
        memory, part, copied = self._under_way.popleft()
        if copied is not None:
            copied.synchronize()
        self._read.append((memory, self._write(as_bytes(part))))

    def _free(self, pinned: bool) -> Tensor:
        if self._unmade:
            self._unmade -= 1
            return torch.empty(self._piece, dtype=torch.uint8, pin_memory=pinned)
        memory, told = self._read.popleft()
        if isinstance(told, Future):
            told.result()
        return memory
