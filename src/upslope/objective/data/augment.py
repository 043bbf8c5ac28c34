"""How drawn images are changed before networks look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.types import Part


class Augmentation(Part):
    """Changes drawn images so that networks do not learn them by heart."""

    for_images: ClassVar[bool] = True
    """Whether there must be images."""

    def __call__(self, images: np.ndarray, channel_axis: int, random: np.random.Generator) -> np.ndarray:
        """Images ``[M, *shape]`` of the same shape.

        Args:
            channel_axis: Which axis of an image are channels.
            random: Of this update, and of observations or of what followed them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class NoAugmentation(Augmentation):
    """Observations are seen as they were stored."""

    for_images: ClassVar[bool] = False

    def __call__(self, images: np.ndarray, channel_axis: int, random: np.random.Generator) -> np.ndarray:
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

    def __call__(self, images: np.ndarray, channel_axis: int, random: np.random.Generator) -> np.ndarray:
        planes = np.moveaxis(images, channel_axis + 1, 1)
        wide = np.pad(planes, ((0, 0), (0, 0), (self.padding,) * 2, (self.padding,) * 2), mode="edge")
        crops = np.lib.stride_tricks.sliding_window_view(wide, planes.shape[2:], axis=(2, 3))  # type: ignore[call-overload]
        down, right = random.integers(0, 2 * self.padding + 1, (2, len(images)))
        return np.moveaxis(crops[np.arange(len(images)), :, down, right], 1, channel_axis + 1)
