"""How drawn images are changed before networks look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.types import ActionSpace, Part


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

    def of_observations(self, seen: Tensor, space: ActionSpace, random: torch.Generator) -> Tensor:
        """Observations ``[M, *shape]`` with changed images: each of several on its own, and numbers beside them as they are."""
        if not space.pieces:
            return self(seen, space.channel_axis, random)  # type: ignore[arg-type]  # of an image
        changed = seen.clone()
        for piece in space.pieces:
            if piece.is_image:
                images = seen[:, piece.begin : piece.end].reshape(len(seen), *piece.shape)
                changed[:, piece.begin : piece.end] = self(images, piece.channel_axis, random).flatten(1)  # type: ignore[arg-type]
        return changed


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
        first = 2 if channel_axis == 0 else 1  # the axis of rows; that of columns is behind it
        sides = images.shape[first : first + 2]
        shifts = torch.randint(-self.padding, self.padding + 1, (2, len(images)), generator=random)
        edge = min(self.padding, max(sides))  # who is shifted by more than its own size shows its edge alone
        top, left = (edge + shift.clamp(-side, side) for shift, side in zip(shifts, sides, strict=True))
        padded = _with_edges(images, first, edge)
        image, *strides = padded.stride()
        corners = torch.arange(len(images)) * image + top * padded.stride(first) + left * padded.stride(first + 1)
        shifted = torch.empty(images.shape, dtype=images.dtype)
        for into, corner in zip(shifted.unbind(), corners.tolist(), strict=True):  # copies whole rows; a gather goes pixel by pixel
            into.copy_(padded.as_strided(into.shape, strides, corner))
        return shifted


def _with_edges(images: Tensor, first: int, width: int) -> Tensor:
    """Images with their outermost pixels repeated on all sides; ``F.pad`` takes no bytes, nor channels that come last."""
    rows, columns = images.shape[first : first + 2]
    made = images.new_empty((*images.shape[:first], rows + 2 * width, columns + 2 * width, *images.shape[first + 2 :]))
    inside = made.narrow(first, width, rows)
    inside.narrow(first + 1, width, columns).copy_(images)
    inside.narrow(first + 1, 0, width).copy_(images.narrow(first + 1, 0, 1))
    inside.narrow(first + 1, width + columns, width).copy_(images.narrow(first + 1, columns - 1, 1))
    made.narrow(first, 0, width).copy_(made.narrow(first, width, 1))
    made.narrow(first, width + rows, width).copy_(made.narrow(first, width + rows - 1, 1))
    return made
