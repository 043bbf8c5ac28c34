"""A variational autoencoder of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from upslope.errors import MethodError
from upslope.objective.base import ActionSpace, ModelNetwork
from upslope.objective.networks.encoders import vector_size
from upslope.objective.networks.layers import MLPStack
from upslope.objective.networks.mlp import HiddenLayers

LOG_STD = (-4.0, 15.0)
"""Bounds of the logarithm of a latent's spread, as released code of BCQ and its heirs has them."""


class VAEModule(nn.Module):
    """Encodes an action at a state as a Gaussian over latents, and decodes latents into actions within [-1, 1]."""

    def __init__(self, encoder: MLPStack, decoder: MLPStack):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(self, observation: Tensor, frozen: bool, action: Tensor) -> Tensor:
        """Mean and logarithm of the spread of the latents, side by side, ``[N, T, 2 L]``."""
        mean, log_std = _through(self.encoder, observation, action, frozen).chunk(2, -1)
        return torch.cat([mean, log_std.clamp(*LOG_STD)], -1)

    def decode(self, observation: Tensor, frozen: bool, latent: Tensor) -> Tensor:
        """Actions ``[N, T, A]`` for latents ``[N, T, L]``."""
        return _through(self.decoder, observation, latent, frozen).tanh()


def _through(stack: MLPStack, observation: Tensor, beside: Tensor, frozen: bool) -> Tensor:
    inputs = torch.cat([observation, beside], -1)
    return stack(inputs.flatten(0, 1), frozen)[0].unflatten(0, inputs.shape[:2])


@dataclass(frozen=True)
class ActionVAE(HiddenLayers, ModelNetwork):
    """A variational autoencoder of action vectors, given the state.

    Fields:
        hidden: widths of the hidden layers, of the encoder and of the decoder.
        latents: for each dimension of the action.
    """

    ranges: ClassVar = {"latents": "[1, 1000]"}

    hidden: tuple[int, ...] = (750, 750)
    latents: int = 2

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        if space.discrete:
            raise MethodError("an autoencoder of actions is for vectors, and this environment's actions are choices.")
        size, latent = vector_size(space, type(self).__name__), self.latents * space.actions
        encoder = MLPStack(1, (size + space.actions, *self.hidden, 2 * latent), "relu", False, seed)
        decoder = MLPStack(1, (size + latent, *self.hidden, space.actions), "relu", False, seed ^ 1)
        return VAEModule(encoder, decoder)
