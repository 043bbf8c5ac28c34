"""Observations of images and numbers together, packed into one row of bytes each.

Stores, files, processes and GPUs then move one array, as they do for a vector or an image; encoders take the row apart again.
Numbers come first, as float32, then images, each kind in the order of their names; a row is filled up to whole float32, so that
its numbers can be read where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

NUMBER = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Piece:
    """An image or numbers in a packed observation.

    Fields:
        name: its keys from the whole observation, with dots between them.
        begin: its first byte.
    """

    name: str
    shape: tuple[int, ...]
    is_image: bool
    begin: int = 0

    @property
    def size(self) -> int:
        """Numbers, or pixels times channels."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.size * (1 if self.is_image else NUMBER)

    @property
    def channel_axis(self) -> int | None:
        """Of an image, which of its axes are channels."""
        return channel_axis(self.shape) if self.is_image else None

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}{' bytes' if self.is_image else ''}"


def channel_axis(shape: tuple[int, ...]) -> int:
    """Of an image: 0 or 2, whichever is shorter; a stack of grey frames is a channel each."""
    return 0 if shape[0] < shape[2] else 2


def packing(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces in their order in a row, each with its place."""
    placed: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.is_image, piece.name)):
        placed.append(Piece(piece.name, piece.shape, piece.is_image, placed[-1].end if placed else 0))
    return tuple(placed)


def packed_size(pieces: tuple[Piece, ...]) -> int:
    """Bytes of a row."""
    return -(-pieces[-1].end // NUMBER) * NUMBER


def packed(values: Mapping[str, Any], pieces: tuple[Piece, ...], count: int) -> np.ndarray:
    """Rows of bytes ``[count, size]`` of as many values of each piece."""
    rows = np.zeros((count, packed_size(pieces)), np.uint8)
    for piece in pieces:
        found = np.ascontiguousarray(values[piece.name], np.uint8 if piece.is_image else np.float32)
        rows[:, piece.begin : piece.end] = found.reshape(count, -1).view(np.uint8)
    return rows


def numbers_of(rows: np.ndarray, pieces: tuple[Piece, ...]) -> np.ndarray:
    """All numbers ``[..., D]`` float32 of packed rows, where they are: to write them changes the rows."""
    return rows[..., : max((piece.end for piece in pieces if not piece.is_image), default=0)].view(np.float32)


def arrays_of(rows: np.ndarray, pieces: tuple[Piece, ...]) -> dict[str, np.ndarray]:
    """The pieces ``[N, *shape]`` of packed rows by name."""
    found = {piece.name: rows[:, piece.begin : piece.end] for piece in pieces}
    return {
        piece.name: (found[piece.name] if piece.is_image else found[piece.name].view(np.float32)).reshape(len(rows), *piece.shape)
        for piece in pieces
    }
