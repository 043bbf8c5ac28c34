"""Feed-forward networks in torch's own operations, the plain way. The fast way is held against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

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


def logp_and_entropy(output: Tensor, log_std: Tensor | None, components: tuple[int, ...], action: Tensor) -> tuple[Tensor, Tensor]:
    """Of actions: categorical in logits, several of them side by side, or a Gaussian with independent dimensions."""
    if log_std is not None:
        vector = Independent(Normal(output, log_std.exp()), 1)
        return vector.log_prob(action), vector.entropy()
    if not components:
        choice = Categorical(logits=output)
        return choice.log_prob(action), choice.entropy()
    each = [Categorical(logits=logits) for logits in output.split(components, -1)]
    logp = torch.stack([one.log_prob(taken) for one, taken in zip(each, action.unbind(-1), strict=True)])
    return logp.sum(0), torch.stack([one.entropy() for one in each]).sum(0)


class PlainPass:
    """A forward pass that torch's autograd takes back.

    Args:
        vectors: Weights and widths by name; ``policy`` gives the distribution, every other a column of its own name.
        observation: ``[N, T, D]``.
        action: ``[N, T]`` choices, ``[N, T, K]`` choices of components, or ``[N, T, A]``.
        mask: ``[N, T, A]``, the choices that were allowed; none where all were.
    """

    def __init__(self, vectors: Mapping[str, tuple[Tensor, tuple[int, ...]]], sizes: MLPSizes, observation: Tensor,
                 action: Tensor, want_entropy: bool, mask: Tensor | None = None) -> None:  # fmt: skip
        outputs = {name: network_output(*vector, sizes.activation, observation) for name, vector in vectors.items()}
        log_std = vectors["policy"][0][-sizes.actions :] if sizes.continuous else None
        parameters = outputs.pop("policy")
        parameters = parameters if mask is None else parameters.masked_fill(~mask, -torch.inf)
        logp, entropy = logp_and_entropy(parameters, log_std, sizes.components, action)
        own = {"logp": logp} | ({"entropy": entropy} if want_entropy else {})
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
        log_std = None if self.log_std is None else torch.from_numpy(self.log_std)
        return View(*logp_and_entropy(parameters, log_std, self.components, torch.from_numpy(action)), value)
