"""Encoders: what stands between an image and the layers of a policy or a critic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from upslope.errors import MethodError
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.objective.networks.pieces import tensors_of
from upslope.packed import Piece
from upslope.types import ActionSpace, Part


class ConvLayer(NamedTuple):
    """A convolution without padding."""

    channels: int
    kernel: int
    stride: int


class Encoder(Part):
    """Makes features of an observation."""

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        """An untrained module from observations ``[M, *shape]``, bytes where they are images, to features ``[M, F]``.

        Args:
            shape: Of an observation.
            channel_axis: Which axis of an image are channels; vectors have none.
        """
        raise NotImplementedError

    def build_combined(self, pieces: tuple[Piece, ...], seed: int) -> nn.Module:
        """An untrained module from packed observations of images and numbers ``[M, bytes]`` to features ``[M, F]``.

        Each image has an encoder of its own, as `build` makes it; numbers are taken as they are.
        """
        images = [piece for piece in pieces if piece.is_image]
        seeds = (seed + number for number in range(len(images)))
        return CombinedEncoder(
            pieces, [self.build(image.shape, image.channel_axis, each) for image, each in zip(images, seeds, strict=True)]
        )


class CombinedEncoder(nn.Module):
    """Features of each image, behind the numbers.

    Args:
        images: What makes features of each image, in the order of the pieces.
    """

    def __init__(self, pieces: tuple[Piece, ...], images: Sequence[nn.Module]):
        super().__init__()
        self.pieces, self.images = pieces, nn.ModuleList(images)

    def forward(self, packed: Tensor) -> Tensor:
        seen = tensors_of(packed, self.pieces)
        made = [encoder(seen[piece.name]) for piece, encoder in zip(self.pieces[-len(self.images) :], self.images, strict=True)]
        numbers = [seen[piece.name].flatten(1).to(made[0].dtype) for piece in self.pieces if not piece.is_image]
        return torch.cat([*numbers, *made], 1)


class ImageEncoder(nn.Module):
    """Convolutions over bytes, and a layer that gives the features.

    Weights begin as torch's own layers do, drawn from a generator of their own.

    Args:
        shape: Of an image.
        channel_axis: Which of its axes are channels.
        features: What comes out; 0 leaves the last feature maps as they are, flat.
    """

    def __init__(self, shape: tuple[int, ...], channel_axis: int | None, layers: Sequence[ConvLayer], features: int, seed: int):
        super().__init__()
        if channel_axis is None:
            raise MethodError(
                f"this encoder is for images, and observations here are vectors of {shape[0]}. Leave the encoder out."
            )
        self.to_channels_first = (0, channel_axis + 1, *(axis + 1 for axis in range(3) if axis != channel_axis))
        channels, *size = (shape[axis - 1] for axis in self.to_channels_first[1:])
        widths = (channels, *(layer.channels for layer in layers))
        convolutions = [
            nn.Conv2d(below, above, layer.kernel, layer.stride)
            for (below, above), layer in zip(pairwise(widths), layers, strict=True)
        ]
        for layer in layers:
            size = [(side - layer.kernel) // layer.stride + 1 for side in size]
        if min(size) < 1:
            raise MethodError(
                f"images of {shape} are smaller than what the {len(layers)} convolutions of this encoder look at. Take SmallCNN()."
            )
        self.convolutions = nn.ModuleList(convolutions)
        flat = widths[-1] * math.prod(size)
        self.last = nn.Linear(flat, features) if features else None
        _draw_weights(self, seed)

    def forward(self, image: Tensor) -> Tensor:
        hidden = image.permute(self.to_channels_first).to(next(self.parameters()).dtype) / 255
        for convolution in self.convolutions:
            hidden = torch.relu(convolution(hidden))
        hidden = hidden.flatten(1)
        return hidden if self.last is None else torch.relu(self.last(hidden))


def _draw_weights(module: nn.Module, seed: int) -> None:
    """Uniform within one over the square root of what a layer takes in, as torch does."""
    random = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for weight in layer.parameters():
                nn.init.uniform_(weight, -bound, bound, generator=random)


@dataclass(frozen=True)
class NatureCNN(Encoder):
    """The three convolutions of the DQN paper, for images of about 84 x 84.

    Fields:
        features: of the layer behind the convolutions.
    """

    ranges: ClassVar = {"features": "[1, 65536]"}

    features: int = 512

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        layers = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))
        return ImageEncoder(shape, channel_axis, layers, self.features, seed)


@dataclass(frozen=True)
class SmallCNN(Encoder):
    """Two convolutions of 2 x 2 and 3 x 3, for images of a few cells, such as the view of a grid.

    Fields:
        features: of the layer behind the convolutions.
        channels: of each convolution.
    """

    ranges: ClassVar = {"features": "[1, 65536]", "channels": "[1, 4096]"}

    features: int = 128
    channels: int = 32

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        layers = (ConvLayer(self.channels, 2, 1), ConvLayer(self.channels, 3, 1))
        return ImageEncoder(shape, channel_axis, layers, self.features, seed)


def encoder_for(shape: tuple[int, ...], channel_axis: int) -> Encoder:
    """What fits images of this size, where none was named."""
    sides = [side for axis, side in enumerate(shape) if axis != channel_axis]
    return NatureCNN() if min(sides) >= 36 else SmallCNN()


@dataclass(frozen=True)
class DefaultEncoder(Encoder):
    """What fits: `NatureCNN` for images, or `SmallCNN` if a side has fewer than 36 pixels; vectors are taken as they are."""

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        if channel_axis is None:
            return nn.Identity()
        return encoder_for(shape, channel_axis).build(shape, channel_axis, seed)


def flat_encoder(encoder: Encoder, space: ActionSpace, seed: int) -> tuple[FlatNetwork | None, int]:
    """What stands before the layers of a network, nothing where they see the observation itself, and how many numbers they get."""
    shape, pieces = space.observation, space.pieces
    module = encoder.build_combined(pieces, seed) if pieces else encoder.build(shape, space.channel_axis, seed)
    if isinstance(module, nn.Identity):
        return None, shape[0]
    with torch.no_grad():
        found = module(torch.zeros((1, *shape), dtype=torch.uint8 if space.has_images else torch.float32))
    if found.dim() != 2:
        raise MethodError(
            f"the encoder {type(encoder).__name__} makes {tuple(found.shape)} of one observation of {shape}; "
            "it must be one row of features, as (1, 512)."
        )
    return FlatNetwork(module), found.shape[1]


def vector_size(space: ActionSpace, network: str) -> int:
    """Numbers in an observation, for networks that take no images."""
    if space.has_images:
        seen = f"images of {space.observation}" if not space.pieces else ", ".join(map(str, space.pieces))
        raise MethodError(f"{network} takes vectors, and observations here are {seen}.")
    return space.observation[0]
