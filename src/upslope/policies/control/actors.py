"""Actors: torch networks that choose actions, with samples through which gradients flow.

Actions are vectors in [-1, 1], whatever the box of the environment, or ids. There are a squashed Gaussian (tanh of a Gaussian, with
the density of what comes out), a clipped one (a Gaussian around a bounded mean), a certain one, and a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from upslope.objective.networks.balance import sinusoids
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.objective.networks.layers import FlatModule, MLPStack
from upslope.types import Drawn

LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of a standard deviation."""
EDGE = 1e-6
"""How near a recorded action may come to the ends of [-1, 1] before tanh is undone."""
NUMPY_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


class ActorNetwork(Protocol):
    """What a policy's network answers. ``observation`` is ``[N, T, ...]``; what it is conditioned on stands in it already."""

    stack: MLPStack
    encoder: FlatNetwork | None

    def sample(self, observation: Tensor, noise: Tensor, frozen: bool) -> Drawn:
        """Actions for noise ``[N, T, J, A]`` (or uniforms ``[N, T, J]``)."""

    def logp(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        """Log-probability ``[N, T, J]`` of actions ``[N, T, J, ...]``."""

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool) -> np.ndarray:
        """Actions ``[B, ...]`` for a numpy output of the stack ``[B, O]``."""


class _Actor(nn.Module):
    certain = False
    """Whether nothing is drawn, so that noise need not be."""

    def __init__(self, stack: MLPStack, actions: int, encoder: FlatNetwork | None = None):
        super().__init__()
        self.stack, self.actions, self.encoder = stack, actions, encoder

    def output(self, observation: Tensor, frozen: bool) -> Tensor:
        flat = observation.flatten(0, 1)
        seen = flat if self.encoder is None else self.encoder(flat, frozen)
        return self.stack(seen, frozen).squeeze(0).unflatten(0, observation.shape[:2])


class GaussianActor(_Actor):
    """A Gaussian with a spread that depends on the state or is shared by all.

    Args:
        squashed: tanh of what is drawn; otherwise tanh of the mean, and what is drawn is clipped.
        shared: One vector of spreads for all states, in place of a further output of the network.
    """

    def __init__(
        self, stack: MLPStack, actions: int, squashed: bool, shared: FlatModule | None, encoder: FlatNetwork | None = None
    ):
        super().__init__(stack, actions, encoder)
        self.squashed, self.shared = squashed, shared

    def parameters_at(self, observation: Tensor, frozen: bool) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the spread ``[N, T, A]``."""
        output = self.output(observation, frozen)
        if self.shared is None:
            mean, log_std = output.split(self.actions, -1)
        else:
            mean, log_std = output, self.shared.pieces(frozen)["log_std"].expand_as(output)
        return (mean if self.squashed else mean.tanh()), log_std.clamp(*LOG_STD)

    def sample(self, observation: Tensor, noise: Tensor, frozen: bool) -> Drawn:
        mean, log_std = (each.unsqueeze(2) for each in self.parameters_at(observation, frozen))
        drawn = mean + log_std.exp() * noise
        gaussian = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        if self.squashed:
            return Drawn(drawn.tanh(), gaussian - _squash_logarithm(drawn))
        return Drawn(drawn.clamp(-1, 1), gaussian)

    def logp(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        mean, log_std = (each.unsqueeze(2) for each in self.parameters_at(observation, frozen))
        drawn = action.clamp(-1 + EDGE, 1 - EDGE).atanh() if self.squashed else action
        noise = (drawn - mean) * (-log_std).exp()
        gaussian = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return gaussian - _squash_logarithm(drawn) if self.squashed else gaussian

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool) -> np.ndarray:
        if self.shared is None:
            mean, log_std = np.split(output, 2, -1)
        else:
            mean, log_std = output, self.shared.frozen["log_std"].cpu().numpy()
        mean = mean if self.squashed else np.tanh(mean)
        drawn = mean if greedy else mean + np.exp(np.clip(log_std, *LOG_STD)) * noise
        return np.tanh(drawn) if self.squashed else np.clip(drawn, -1, 1)


class FamilyActor(GaussianActor):
    """A Gaussian for every coefficient: the last number of what it is shown, which it reads as sinusoids."""

    def output(self, observation: Tensor, frozen: bool) -> Tensor:
        own, coefficient = observation[..., :-1], observation[..., -1]
        return super().output(torch.cat([own, sinusoids(coefficient)], -1), frozen)


class CertainActor(_Actor):
    """tanh of the output; nothing is drawn."""

    certain = True

    def sample(self, observation: Tensor, noise: Tensor, frozen: bool) -> Drawn:
        action = self.output(observation, frozen).tanh().unsqueeze(2).expand_as(noise)
        return Drawn(action, action.new_zeros(action.shape[:3]))

    def logp(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        """That of a Gaussian of spread one around the action: minus half the squared distance, and a constant."""
        mean = self.output(observation, frozen).tanh().unsqueeze(2)
        return (-0.5 * (action - mean).square() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool) -> np.ndarray:
        return np.tanh(output)


class SoftmaxActor(_Actor):
    """A softmax over choices."""

    def log_probabilities(self, observation: Tensor, frozen: bool) -> Tensor:
        return self.output(observation, frozen).log_softmax(-1)

    def sample(self, observation: Tensor, noise: Tensor, frozen: bool) -> Drawn:
        logp = self.log_probabilities(observation, frozen)
        last = self.actions - 1
        action = torch.searchsorted(logp.exp().cumsum(-1).contiguous(), noise.contiguous(), right=True).clamp_max(last)
        return Drawn(action, logp.gather(-1, action))

    def logp(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        return self.log_probabilities(observation, frozen).gather(-1, action)

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool) -> np.ndarray:
        if greedy:
            return output.argmax(-1)
        cumulative = np.exp(output - output.max(-1, keepdims=True)).cumsum(-1)
        return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(-1)


def _squash_logarithm(drawn: Tensor) -> Tensor:
    """Logarithm of the derivative of tanh, summed over dimensions, in a form that does not overflow."""
    return (2 * (math.log(2) - drawn - nn.functional.softplus(-2 * drawn))).sum(-1)


def numpy_forward(stack: MLPStack, observation: np.ndarray, member: int | None = 0) -> np.ndarray:
    """A stack's outputs ``[B, O]`` of one member, or ``[E, B, O]`` of all, in numpy, with the weights as they stand.

    On a handful of observations the calls are what costs, and numpy's cost less than half of torch's.
    """
    pieces: Mapping[str, Any] = stack.frozen
    hidden, act = observation, NUMPY_ACTIVATIONS[stack.activation]
    layers = len(stack.widths) - 1
    for layer in range(layers):
        weight, bias = pieces[f"{layer}.weight"].numpy(), pieces[f"{layer}.bias"].numpy()
        hidden = hidden @ weight + bias if member is None else hidden @ weight[member] + bias[member]
        if layer == layers - 1:
            break
        if stack.layer_norm:
            scale, shift = pieces[f"{layer}.scale"].numpy(), pieces[f"{layer}.shift"].numpy()
            mean, spread = hidden.mean(-1, keepdims=True), hidden.var(-1, keepdims=True)
            hidden = (hidden - mean) / np.sqrt(spread + 1e-5)
            hidden = hidden * scale + shift if member is None else hidden * scale[member] + shift[member]
        hidden = act(hidden)
    return hidden


def torch_forward(stack: MLPStack, observation: np.ndarray) -> np.ndarray:
    """The same by torch's own operations, for activations that numpy has not."""
    with torch.no_grad():
        return stack(torch.from_numpy(observation), True).numpy()
