"""Observations of images and numbers as logs have them, an array for each piece, and as they are stored, packed into bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.packed import Piece, packed, packing


def pack_columns(columns: Mapping[Any, Any], where: str) -> tuple[np.ndarray, tuple[Piece, ...]]:
    """Rows of bytes ``[N, size]`` of arrays ``[N, ...]`` by name, and what is where in them. Bytes of two or three axes a row are
    images, all else is numbers; a dict may be in the dict.

    Args:
        where: Of what, for messages.

    Raises:
        UserError: if they are no such arrays, of different lengths, or if there is no image among them.
    """
    found = dict(_arrays(columns, "", where))
    lengths = {name: len(array) for name, array in found.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{where} of different lengths: {', '.join(f'{name} {count:,}' for name, count in lengths.items())}.")
    pieces = packing(_piece(name, array, where) for name, array in found.items())
    if not any(piece.is_image for piece in pieces):
        raise UserError(f"{where} as {', '.join(found) or 'nothing'}, with no image among them (uint8, three axes or four). Give "
                        "numbers alone as one array, in the order in which the environment has them.")  # fmt: skip
    return packed(found, pieces, next(iter(lengths.values()))), pieces


def _arrays(columns: Mapping[Any, Any], before: str, where: str) -> Iterator[tuple[str, np.ndarray]]:
    for key, value in columns.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _arrays(value, f"{name}.", where)
            continue
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            raise UserError(f"{where}, and in {name!r} rows of different shapes; they must be of one.") from None
        if not array.ndim or array.dtype.kind not in "biuf" or not array[:1].size:
            raise UserError(f"{where}, and {name!r} of type {array.dtype} and shape {array.shape}; it must be an array with a row "
                            "for every step.")  # fmt: skip
        yield name, array


def _piece(name: str, array: np.ndarray, where: str) -> Piece:
    image, shape = array.dtype == np.uint8 and array.ndim > 2, array.shape[1:]
    if image and len(shape) > 3:
        raise UserError(f"{where}, and {name!r} of shape {array.shape}; an image is (height, width) or has channels beside them.")
    return Piece(name, (*shape, 1) if image and len(shape) == 2 else shape or (1,), image)
