"""Images and numbers of packed observations (`upslope.packed`) as networks take them."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.packed import Piece


def tensors_of(rows: Tensor, pieces: tuple[Piece, ...]) -> dict[str, Tensor]:
    """The pieces ``[..., *shape]`` of packed rows by name, images in bytes; or of what `in_numbers` made of them, in floats."""
    if rows.dtype != torch.uint8:
        found = rows.split([piece.size for piece in pieces], -1)
    else:
        bytes_of = [rows[..., piece.begin : piece.end] for piece in pieces]
        found = tuple(each if piece.is_image else each.view(torch.float32) for piece, each in zip(pieces, bytes_of, strict=True))
    return {piece.name: each.unflatten(-1, piece.shape) for piece, each in zip(pieces, found, strict=True)}


def in_numbers(rows: Tensor, pieces: tuple[Piece, ...], dtype: torch.dtype) -> Tensor:
    """Packed rows as numbers ``[..., D]`` that can be mixed, a pixel from 0 to 255 each."""
    found = tensors_of(rows, pieces)
    return torch.cat([found[piece.name].flatten(-len(piece.shape)).to(dtype) for piece in pieces], -1)
