"""How drawn images are changed before networks look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.types import Part


class Augmentation(Part):
    """Changes drawn images so that networks do not learn them by heart."""

    for_images: ClassVar[bool] = True
    """Whether there must be images."""

    def __call__(self, images: Tensor, channel_axis: int, random: torch.Generator) -> Tensor:
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
        pixels = images.movedim(channel_axis + 1, -1)
        count, height, width = pixels.shape[:3]
        down, right = torch.randint(-self.padding, self.padding + 1, (2, count, 1), generator=random)
        # What lies outside is the nearest pixel of the edge.
        rows, columns = ((shift + torch.arange(side)).clamp(0, side - 1) for shift, side in ((down, height), (right, width)))
        shifted = pixels[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return shifted.movedim(-1, channel_axis + 1).contiguous()
