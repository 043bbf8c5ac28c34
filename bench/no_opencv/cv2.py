"""The one function of OpenCV that Atari's preprocessing calls, in numpy, for machines that OpenCV does not get onto.

``resize`` with ``INTER_AREA`` averages what each pixel of the smaller image covers of the larger one: a product from each side.
"""

from __future__ import annotations

from functools import cache

import numpy as np

INTER_AREA = 3


@cache
def _covered(larger: int, smaller: int) -> np.ndarray:
    """``[smaller, larger]``: the share of each row of the larger image in a row of the smaller."""
    edges = np.arange(smaller + 1) * larger / smaller
    pixel = np.arange(larger)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return (np.clip(overlap, 0.0, None) * smaller / larger).astype(np.float32)


def resize(image: np.ndarray, size: tuple[int, int], interpolation: int = INTER_AREA) -> np.ndarray:
    """A grey image made smaller; ``size`` is width and height."""
    if interpolation != INTER_AREA or image.ndim != 2:
        raise NotImplementedError("only grey images are shrunk here, by INTER_AREA")
    rows, columns = _covered(image.shape[0], size[1]), _covered(image.shape[1], size[0])
    return np.rint(rows @ image.astype(np.float32) @ columns.T).astype(np.uint8)
