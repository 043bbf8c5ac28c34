"""Acting: a control policy's weights as they stand, made to pick actions thousands of times in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.policies.control.network import ACTIVATIONS, Categorical, Gaussian
from upslope.types import View

if TYPE_CHECKING:
    from upslope.policies.control.mlp import MLPPolicy


class Acted(NamedTuple):
    """An action and what the policy thought of it, ``[B]`` each; ``value`` is absent without a critic."""

    action: Tensor
    """Ids ``[B]`` or vectors ``[B, D]``. Gaussian actions are as drawn: the environment's side clips them to its box."""
    logp: Tensor
    entropy: Tensor | None
    value: Tensor | None


class WithoutMemory:
    """What acts on an observation alone."""

    memory_size = 0
    """Numbers that are remembered of an episode."""

    def step(self, observation: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The output for observations ``[B, ...]``, and the memories ``[B, memory_size]`` behind them, given those before them.

        A memory begins with zeros, and whoever acts puts zeros where an episode has ended.
        """
        return self.output(observation), memory

    def output(self, observation: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Actor(WithoutMemory):
    """A policy's weights as they stood when it was made: actor and critic fused, on the CPU, where environments are.

    The first layers are stacked, later ones stand on the diagonal of one matrix: a step costs one small product per layer
    instead of two. It computes in numpy: on a handful of observations the calls are what costs, and numpy's cost less than half of
    torch's. Only what the next step waits for is worked out at once; `view` does the rest for a whole rollout.
    """

    def __init__(self, policy: MLPPolicy) -> None:
        stacks = [policy.actor] + ([policy.critic] if policy.critic is not None else [])
        self.has_value = len(stacks) == 2
        self.activation = ACTIVATIONS[policy.sizes.activation].call
        self.log_std = policy.log_std.float().numpy().copy() if policy.log_std is not None else None
        self._std = np.exp(self.log_std) if self.log_std is not None else None
        self._weights: list[tuple[np.ndarray, np.ndarray]] = []
        for depth, layers in enumerate(zip(*stacks, strict=True)):
            blocks = [layer.weight.float() for layer in layers]
            joined = torch.cat(blocks) if depth == 0 else torch.block_diag(*blocks)
            bias = torch.cat([layer.bias.float() for layer in layers])
            self._weights.append((joined.t().contiguous().numpy(), bias.numpy()))

    def output(self, observation: np.ndarray) -> np.ndarray:
        """Logits or means, then the value if there is a critic: ``[B, A]`` or ``[B, A + 1]``, float32."""
        *inner, (head, head_bias) = self._weights
        hidden = observation
        for weight, bias in inner:
            hidden = self.activation(hidden @ weight + bias)
        return hidden @ head + head_bias

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions ``[B]`` or ``[B, D]`` for one step's output; the noise is as in `MLPPolicy.act`."""
        parameters = output[:, :-1] if self.has_value else output
        if self._std is not None:
            return parameters.copy() if greedy else parameters + self._std * noise
        if greedy:
            return parameters.argmax(-1)
        # Inverse CDF without normalising. A uniform below one times the total stays below the total in floating point, so the
        # index stays inside, and an action of probability zero is never the first to pass the threshold.
        cumulative = np.exp(parameters - parameters.max(-1, keepdims=True)).cumsum(-1)
        return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(-1)

    def view(self, output: np.ndarray, action: np.ndarray) -> View:
        """What was thought of the actions, for outputs with any leading axes: a whole rollout in one call."""
        shape, output = output.shape[:-1], output.reshape(-1, output.shape[-1])
        parameters = output[:, :-1] if self.has_value else output
        action = action.reshape(len(output), *action.shape[len(shape) :])
        thought = Categorical(parameters, action) if self.log_std is None else Gaussian(parameters, self.log_std, action)
        columns = {"logp": thought.logp, "entropy": thought.entropy} | ({"value": output[:, -1]} if self.has_value else {})
        return View.of({name: torch.from_numpy(column.reshape(shape)) for name, column in columns.items()})

    def value(self, observation: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Values ``[B]`` under memories as in `step`; zeros without a critic, as where nothing is known behind a cut."""
        return self.step(observation, memory)[0][:, -1] if self.has_value else np.zeros(len(observation), np.float32)

    def judged(self, observation: np.ndarray, output: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """What the critic expects from here on, ``[B]``, given one step's output; nothing without a critic."""
        return output[:, -1] if self.has_value else None
