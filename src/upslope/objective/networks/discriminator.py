"""A network that tells two sources of transitions apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from upslope.objective.base import ActionSpace, ModelNetwork
from upslope.objective.networks.encoders import vector_size
from upslope.objective.networks.layers import MLPStack
from upslope.objective.networks.mlp import HiddenLayers


class DiscriminatorModel(nn.Module):
    """Two bounded logits for a state and an action, or for these and the state behind them.

    Args:
        choices: Number of choices, which are seen as one-hot vectors; 0 where actions are vectors.
        bound: Logits are within plus and minus this.
    """

    def __init__(self, stack: MLPStack, choices: int, bound: float):
        super().__init__()
        self.stack, self.choices, self.bound = stack, choices, bound

    def state(self, observation: Tensor, frozen: bool) -> Tensor:
        """The state as `logits` takes it, ``[N, T, D]``: whoever disturbs it gives it back."""
        return observation

    def logits(self, observation: Tensor, frozen: bool, state: Tensor, action: Tensor, following: Tensor | None = None) -> Tensor:
        """Logits ``[..., 2]`` of the sources; action vectors ``[..., A]`` or ids ``[...]``."""
        seen = action
        if self.choices:  # torch's `one_hot` waits for the largest id
            seen = state.new_zeros((*action.shape, self.choices)).scatter_(-1, action.unsqueeze(-1), 1.0)
        inputs = torch.cat([state, seen] if following is None else [state, seen, following], -1)
        found = self.stack(inputs.flatten(0, -2), frozen)[0].unflatten(0, inputs.shape[:-1])
        return self.bound * found.tanh()


@dataclass(frozen=True)
class DiscriminatorNetwork(HiddenLayers, ModelNetwork):
    """A multi-layer perceptron with two bounded outputs.

    Fields:
        hidden: widths of the hidden layers.
        activation: between them.
        sees_following: the state behind a row is an input, too.
        bound: of the logits: a ratio of probabilities stays within e to the power of twice this, and its inverse.
    """

    ranges: ClassVar = {"bound": "(0, inf)"}

    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["relu", "tanh", "silu", "gelu"] = "relu"
    sees_following: bool = False
    bound: float = 2.0

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        inputs = vector_size(space, type(self).__name__) * (2 if self.sees_following else 1) + space.actions
        stack = MLPStack(1, (inputs, *self.hidden, 2), self.activation, False, seed)
        return DiscriminatorModel(stack, space.actions if space.discrete else 0, self.bound)
