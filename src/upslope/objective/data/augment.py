"""How drawn images are changed before networks look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from upslope.types import Part


class Augmentation(Part):
    """Changes drawn images so that networks do not learn them by heart."""

    for_images: ClassVar[bool] = True
    """Whether there must be images."""

    def __call__(self, images: Tensor, channel_axis: int, random: torch.Generator) -> Tensor:
        """Images ``[M, *shape]`` of the same shape, in host memory like those given.

        Args:
            channel_axis: Which axis of an image are channels.
            random: Of this update, and of observations or of what followed them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class NoAugmentation(Augmentation):
    """Observations are seen as they were stored."""

    for_images: ClassVar[bool] = False

    def __call__(self, images: Tensor, channel_axis: int, random: torch.Generator) -> Tensor:
        return images


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Each image is shifted by a few pixels, its edge repeated into what comes free (DrQ; SERL from pixels).

    An observation and the one behind it are shifted each on its own.

    Fields:
        padding: pixels that an image is shifted by at most, along each side. More hides more of its edges.
    """

    ranges: ClassVar = {"padding": "[1, 1000]"}

    padding: int = 4

    def __call__(self, images: Tensor, channel_axis: int, random: torch.Generator) -> Tensor:
        pixels = images.numpy()
        first = 2 if channel_axis == 0 else 1  # the axis of rows; that of columns is behind it
        sides = pixels.shape[first : first + 2]
        shifts = torch.randint(-self.padding, self.padding + 1, (2, len(pixels)), generator=random).numpy()
        edge = min(self.padding, max(sides))  # who is shifted by more than its own size shows its edge alone
        top, left = (edge + np.clip(shift, -side, side) for shift, side in zip(shifts, sides, strict=True))
        padded = _with_edges(pixels, first, edge)
        made, channels = np.empty(pixels.shape, pixels.dtype), (slice(None),) * (first - 1)
        for image, (row, column) in enumerate(zip(top.tolist(), left.tolist(), strict=True)):
            made[image] = padded[image][(*channels, slice(row, row + sides[0]), slice(column, column + sides[1]))]
        return torch.from_numpy(made)


def _with_edges(pixels: np.ndarray, first: int, width: int) -> np.ndarray:
    """Images with their outermost pixels repeated on all sides. In numpy, which copies whole rows of bytes at a time."""
    rows, columns = pixels.shape[first : first + 2]
    before = (slice(None),) * first
    shape = (*pixels.shape[:first], rows + 2 * width, columns + 2 * width, *pixels.shape[first + 2 :])
    made = np.empty(shape, pixels.dtype)
    inside = (*before, slice(width, width + rows))
    made[(*inside, slice(width, width + columns))] = pixels
    made[(*inside, slice(0, width))] = pixels[(*before, slice(None), slice(0, 1))]
    made[(*inside, slice(width + columns, None))] = pixels[(*before, slice(None), slice(-1, None))]
    made[(*before, slice(0, width))] = made[(*before, slice(width, width + 1))]
    made[(*before, slice(width + rows, None))] = made[(*before, slice(width + rows - 1, width + rows))]
    return made
