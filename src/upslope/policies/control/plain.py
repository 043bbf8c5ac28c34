"""Feed-forward networks in torch's own operations, the plain way. The fast way is held against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from upslope.policies.control.actor import Actor
from upslope.policies.control.network import cut_vector
from upslope.types import View

if TYPE_CHECKING:
    from upslope.policies.control.mlp import MLPPolicy, MLPSizes

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "silu": F.silu}


def network_output(flat: Tensor, widths: tuple[int, ...], activation: str, observation: Tensor) -> Tensor:
    """The output ``[..., O]`` of the layers whose weights stand in one vector."""
    *inner, (head, head_bias) = cut_vector(flat, widths)
    hidden = observation.to(flat.dtype)
    for weight, bias in inner:
        hidden = ACTIVATIONS[activation](F.linear(hidden, weight, bias))
    return F.linear(hidden, head, head_bias)


def distribution(output: Tensor, log_std: Tensor | None) -> Distribution:
    """Of the actions: categorical in logits, or a Gaussian with independent dimensions."""
    return Categorical(logits=output) if log_std is None else Independent(Normal(output, log_std.exp()), 1)


class PlainPass:
    """A forward pass that torch's autograd takes back.

    Args:
        vectors: Weights and widths by name; ``policy`` gives the distribution, every other a column of its own name.
        observation: ``[N, T, D]``.
        action: ``[N, T]`` choices or ``[N, T, A]``.
    """

    def __init__(self, vectors: Mapping[str, tuple[Tensor, tuple[int, ...]]], sizes: MLPSizes, observation: Tensor,
                 action: Tensor, want_entropy: bool) -> None:  # fmt: skip
        outputs = {name: network_output(*vector, sizes.activation, observation) for name, vector in vectors.items()}
        log_std = vectors["policy"][0][-sizes.actions :] if sizes.continuous else None
        actions = distribution(outputs.pop("policy"), log_std)
        own = {"logp": actions.log_prob(action)} | ({"entropy": actions.entropy()} if want_entropy else {})
        self.tensors: dict[str, Tensor] = own | {name: output.squeeze(-1) for name, output in outputs.items()}

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return {name: column.detach().numpy() for name, column in self.tensors.items()}

    def backward(self, grads: Mapping[str, np.ndarray]) -> None:
        torch.autograd.backward([self.tensors[name] for name in grads], [torch.from_numpy(grad) for grad in grads.values()])


class PlainActor(Actor):
    """Acting by torch's own operations; how an action is drawn from them is the same."""

    def __init__(self, policy: MLPPolicy) -> None:
        super().__init__(policy)
        self._networks = [(stack.flat.clone(), stack.widths) for stack in (policy.actor, policy.critic) if stack is not None]
        self._activation = policy.sizes.activation

    def output(self, observation: np.ndarray) -> np.ndarray:
        seen = torch.from_numpy(observation)
        return torch.cat([network_output(*network, self._activation, seen).float() for network in self._networks], -1).numpy()

    def view(self, output: np.ndarray, action: np.ndarray) -> View:
        found = torch.from_numpy(output)
        parameters, value = (found[..., :-1], found[..., -1]) if self.has_value else (found, None)
        actions = distribution(parameters, None if self.log_std is None else torch.from_numpy(self.log_std))
        return View(actions.log_prob(torch.from_numpy(action)), actions.entropy(), value)
