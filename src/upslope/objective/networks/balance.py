"""A number for each state, drawn or certain, within bounds; and how a policy reads such a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from upslope.objective.base import ActionSpace, ModelNetwork
from upslope.objective.networks.encoders import vector_size
from upslope.objective.networks.layers import FlatModule, MLPStack
from upslope.objective.networks.mlp import HiddenLayers

LOG_STD = (-10.0, 2.0)
"""Bounds of the logarithm of the spread."""
WAVES, LONGEST = 3, 1e4
"""Wavelengths by which a number is read, and up to which (without its factor of two pi)."""


def sinusoids(number: Tensor) -> Tensor:
    r"""A number ``[...]`` as sines and cosines ``[..., 6]`` of three wavelengths, one pair after the other.

    .. math::  \sin(x / n^{i/3}),\ \cos(x / n^{i/3}), \quad i = 0, 1, 2, \quad n = 10^4
    """
    slow = LONGEST ** (torch.arange(WAVES, device=number.device) / WAVES)
    angle = number.unsqueeze(-1) / slow
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


class BalanceModule(nn.Module):
    """tanh of a Gaussian around what the state suggests, stretched to an interval; its spread is one number for all states."""

    def __init__(self, stack: MLPStack, low: float, high: float):
        super().__init__()
        self.stack, self.shared = stack, FlatModule({"log_std": torch.zeros(1)})
        self.low, self.high = low, high

    def draw(self, observation: Tensor, frozen: bool, noise: Tensor) -> Tensor:
        """The number, and the log-density of the tanh before it is stretched, side by side ``[N, T, 2]``."""
        mean, log_std = self._mean(observation, frozen), self.shared.pieces(frozen)["log_std"].clamp(*LOG_STD)
        drawn = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squash = 2 * (math.log(2) - drawn - nn.functional.softplus(-2 * drawn))
        return torch.stack([self._stretched(drawn.tanh()), gaussian - squash], -1)

    def certain(self, observation: Tensor, frozen: bool) -> Tensor:
        """The number in the middle of what would be drawn ``[N, T]``."""
        return self._stretched(self._mean(observation, frozen).tanh())

    def anywhere(self, observation: Tensor, frozen: bool, share: Tensor) -> Tensor:
        """The number that so much of the interval lies below."""
        return self.low + share * (self.high - self.low)

    def _mean(self, observation: Tensor, frozen: bool) -> Tensor:
        return self.stack(observation.flatten(0, 1), frozen)[0].unflatten(0, observation.shape[:2]).squeeze(-1)

    def _stretched(self, unit: Tensor) -> Tensor:
        return self.low + 0.5 * (unit + 1) * (self.high - self.low)


@dataclass(frozen=True)
class BoundedNumber(HiddenLayers, ModelNetwork):
    """A number for each state within an interval, which can be drawn.

    Fields:
        low: its lower end.
        high: its upper end.
        hidden: widths of the hidden layers.
    """

    ranges: ClassVar = {"low": "[0, inf)", "high": "[0, inf)"}

    low: float = 1.0
    high: float = 5.0
    hidden: tuple[int, ...] = (256, 256)

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        return BalanceModule(
            MLPStack(1, (vector_size(space, type(self).__name__), *self.hidden, 1), "relu", False, seed), self.low, self.high
        )
