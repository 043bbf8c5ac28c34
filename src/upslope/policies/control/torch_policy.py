"""Policies of torch modules for methods that learn from rows just sampled: from images, with memory, from a user's own network.

What `MLPPolicy` does in numpy is done here on torch's graph, for whatever modules there are:

    observation -> encoder (or nothing) -> memory (or nothing) -> a stack of layers for the actor, one for each critic

Encoder and memory are shared by actor and critics, as Stable-Baselines3 shares its features extractor; the stacks are not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from upslope.errors import MethodError, UserError
from upslope.policies.control.actor import Actor
from upslope.policies.control.greedy import GreedyNetwork
from upslope.policies.control.memory import RecurrentMemory
from upslope.policies.control.plain import logp_and_entropy
from upslope.policies.control.saved_policy import read_weights, take_weights, write_policy
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.seeding import generator
from upslope.types import Ended, Head, Trajectories, View

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}
NUMBERS_PER_SLICE = 1 << 25
"""Numbers in observations that are evaluated at once: convolutions keep about as many again for their gradient, times a few."""
DECISIONS_PER_SLICE = 1 << 15


class TorchPolicy(nn.Module):
    """Picks actions from whatever its modules make of an observation. Made without a critic; `add_value_head` gives it one.

    Stacks begin as those of `MLPPolicy` do: orthogonal, the actor's last layer with a gain of 0.01. Columns go back to where the
    rows are, whatever device the modules are on.

    Args:
        observation_shape: Of one observation.
        actions: Choices, or dimensions if ``continuous``.
        hidden: Widths of the layers of each stack, between the features and its output; there may be none.
        encoder: From observations ``[M, *shape]`` to features ``[M, F]``; its ``features`` is F. Without one the observation, a
            vector, is the features.
        memory: Of what came before in the episode. With one decisions depend on one another, and rows are learned from whole.
        log_std: Of a Gaussian policy, where it starts.
        components: Choices of each component of an action, where it has several.
        seed: Of the stacks' weights.
    """

    domain = "control"
    pads = True
    sized_in_decisions = True

    def __init__(self, observation_shape: Sequence[int], actions: int, continuous: bool, *, hidden: Sequence[int] = (64, 64),
                 activation: str = "tanh", encoder: nn.Module | None = None, memory: RecurrentMemory | None = None,
                 log_std: float = 0.0, components: Sequence[int] = (), seed: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.components = tuple(components)
        self.observation_shape, self.actions, self.continuous = tuple(observation_shape), actions, continuous
        self.hidden, self.activation = tuple(hidden), activation
        self.plain = False
        self.encoder, self.memory = encoder, memory
        self.log_std = nn.Parameter(torch.full((actions,), log_std)) if continuous else None
        self.stacks = nn.ModuleDict()
        self._add_stack("policy", actions, 0.01, generator(seed, "policy"))

    @property
    def independent_decisions(self) -> bool:
        return self.memory is None

    @property
    def features(self) -> int:
        """Numbers that the stacks look at."""
        if self.memory is not None:
            return self.memory.size
        return int(self.encoder.features) if self.encoder is not None else math.prod(self.observation_shape)  # type: ignore[arg-type]

    @property
    def memory_size(self) -> int:
        """Numbers remembered of an episode."""
        return 0 if self.memory is None else self.memory.state_size

    # -- heads ---------------------------------------------------------------------------------------------------------

    @property
    def has_value(self) -> bool:
        return "value" in self.stacks

    @property
    def heads(self) -> list[str]:
        """Names of further outputs; acting does not need them."""
        return [name for name in self.stacks if name not in ("policy", "value")]

    def add_value_head(self, seed: int = 0) -> None:
        """Build the critic; one that is there stays as it is."""
        self.add_head("value", Head(), seed)

    def add_head(self, name: str, head: Head, seed: int) -> None:
        """A further output for learning, on layers of its own; ``value`` is the critic."""
        if head.outputs != 1:
            raise MethodError(f"the model {name!r} has {head.outputs} outputs; control policies have one output per head.")
        if name not in self.stacks:
            self._add_stack(name, 1, 1.0, generator(seed, name))

    def _add_stack(self, name: str, outputs: int, head_gain: float, random: torch.Generator) -> None:
        layers: list[nn.Module] = []
        for below, above in pairwise((self.features, *self.hidden, outputs)):
            layers += [skip_init(nn.Linear, below, above), ACTIVATIONS[self.activation]()]  # torch would draw from its own
        *inner, head = layers[:-1]  # nothing behind the last layer
        draw_orthogonal(inner, math.sqrt(2), random)
        draw_orthogonal([head], head_gain, random)
        self.stacks[name] = nn.Sequential(*inner, head).to(self.device if self.stacks else "cpu")

    # -- acting --------------------------------------------------------------------------------------------------------

    def acting(self) -> TorchActor:
        """The policy as it stands now, made for acting; later updates do not reach it."""
        return TorchActor(self)

    def value(self, observation: Tensor, memory: Tensor | None = None) -> Tensor:
        """Value of observations ``[B, *shape]`` under memories ``[B, S]``, as ``[B]``, without gradient."""
        if not self.has_value:
            raise MethodError("a value was asked of a policy without a critic. Call add_value_head(seed) before the first rollout.")
        with torch.no_grad():
            begun = torch.zeros(len(observation), self.memory_size) if memory is None else memory
            features, _ = self.remembered(observation.to(self.device), begun.to(self.device))
            return self.stacks["value"](features).squeeze(-1)

    def greedy_network(self) -> GreedyNetwork:
        """Refuses: only layers alone are written as a file."""
        what = "remembers what came before" if self.memory is not None else "looks through an encoder"
        raise UserError(
            f"this policy {what}, and only networks of layers alone are written as a file. up.load(RUN).predict answers for it."
        )

    def encoded(self, observation: Tensor) -> Tensor:
        """Features ``[M, F]`` of observations ``[M, *shape]``, which may be bytes."""
        if self.encoder is not None:
            return self.encoder(observation)
        return observation.flatten(1).to(next(self.stacks.parameters()).dtype)

    def remembered(self, observation: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What the stacks look at after one step more, and the memories behind it."""
        features = self.encoded(observation)
        return (features, memory) if self.memory is None else self.memory.step(features, memory.to(features.dtype))

    # -- learning ------------------------------------------------------------------------------------------------------

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset()) -> View:
        """Log-probabilities ``[N, T]`` of the recorded joint actions, and ``entropy`` and heads if needed, with gradient."""
        return View.of(self.forward_pass(rows, needs).tensors)

    def forward_pass(self, rows: Trajectories, needs: frozenset[str]) -> TorchPass:
        """The same as arrays; `backward_pass` takes it back to the weights."""
        if rows.action is None:
            raise MethodError("these rows have no actions to evaluate.")
        if "value" in needs and not self.has_value:
            raise MethodError("a value was asked of a policy without a critic. Call add_value_head(seed) before the first rollout.")
        features = self._row_features(rows)
        parameters, mask = self.stacks["policy"](features), rows.inputs.action_mask
        parameters = parameters if mask is None else parameters.masked_fill(~mask.to(self.device), -torch.inf)
        logp, entropy = logp_and_entropy(parameters, self.log_std, self.components, rows.action.to(self.device))
        columns = {"logp": logp} | ({"entropy": entropy} if "entropy" in needs else {})
        columns |= {name: stack(features).squeeze(-1) for name, stack in self.stacks.items() if name in needs and name != "policy"}
        return TorchPass({name: column.to(rows.action.device) for name, column in columns.items()})

    def _row_features(self, rows: Trajectories) -> Tensor:
        """What the stacks look at, ``[N, T, F]``."""
        observation = rows.inputs.observation.to(self.device)
        count, steps = observation.shape[:2]
        features = self.encoded(observation.flatten(0, 1)).unflatten(0, (count, steps))
        if self.memory is None:
            return features
        if rows.ended is None or rows.inputs.memory is None:
            raise MethodError("these rows do not say where episodes ended and what was remembered in front of them.")
        ends = (rows.ended == Ended.TERMINATED) | (rows.ended == Ended.TRUNCATED)
        begins = torch.zeros_like(ends)
        begins[:, 1:] = ends[:, :-1]
        return self.memory(features, rows.inputs.memory.to(self.device, features.dtype), begins.to(self.device))

    def backward_pass(self, done: TorchPass, grads: Mapping[str, np.ndarray]) -> float:
        """Sets the gradient of every weight, given those of a forward pass's columns, and returns the norm of all together."""
        self.zero_grad(set_to_none=True)
        done.backward(grads)
        found = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        return float(torch.stack([gradient.double().square().sum() for gradient in found]).sum().sqrt())

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        """What each row costs of the `token_budget`: its positions ``[N]``."""
        return torch.full((rows.rows,), rows.sampled.shape[1], dtype=torch.int64)

    def token_budget(self) -> int:
        """Decisions that are evaluated at once, so that their activations fit into memory."""
        return max(1, min(DECISIONS_PER_SLICE, NUMBERS_PER_SLICE // math.prod(self.observation_shape)))

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by who they belong to: ``policy`` (encoder and memory too), ``value`` and further heads."""
        shared = [self.encoder, self.memory, self.stacks["policy"]]
        own = [parameter for module in shared if module is not None for parameter in module.parameters() if parameter.requires_grad]
        own += [] if self.log_std is None else [self.log_std]
        return {"policy": own, "value": []} | {
            name: list(stack.parameters()) for name, stack in self.stacks.items() if name != "policy"
        }

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.stacks.parameters()).device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def frozen_copy(self) -> TorchPolicy:
        """The same weights in a policy that does not learn."""
        return copy.deepcopy(self).requires_grad_(False)

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, as views, and what else modules keep in buffers."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""
        take_weights(self.weights(), weights)

    def save(self, folder: Path | str | CheckpointWriter) -> None:
        """Write ``policy.safetensors`` and ``policy.json``, each whole or not at all."""
        described = {"kind": "torch", "observation": list(self.observation_shape), "actions": self.actions,
                     "continuous": self.continuous, "hidden": list(self.hidden), "activation": self.activation,
                     "memory": self.memory_size, "stacks": list(self.stacks)}  # fmt: skip
        write_policy(folder, described, self.weights())

    def load(self, folder: Path | str | CheckpointReader) -> None:
        """Take the weights of a policy of the same modules.

        Raises:
            Damaged: if the files are not what was written.
        """
        self.load_weights(read_weights(folder, "torch"))


class TorchPass:
    """A forward pass of torch modules: its columns, which autograd takes back."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return {name: column.detach().numpy() for name, column in self.tensors.items()}

    def backward(self, grads: Mapping[str, np.ndarray]) -> None:
        found = [torch.from_numpy(np.ascontiguousarray(grad)) for grad in grads.values()]
        torch.autograd.backward([self.tensors[name] for name in grads], found)


class TorchActor(Actor):
    """A `TorchPolicy` as it stood when this was made. It acts on the GPU only where it has an encoder: little else gains there."""

    def __init__(self, policy: TorchPolicy) -> None:
        here = policy.device if policy.encoder is not None else torch.device("cpu")
        self._policy = policy.frozen_copy().to(here)
        self.has_value, self.memory_size, self.device = policy.has_value, policy.memory_size, here
        self.components = policy.components
        self.log_std = policy.log_std.detach().float().cpu().numpy().copy() if policy.log_std is not None else None
        self._std = np.exp(self.log_std) if self.log_std is not None else None

    def step(self, observation: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            seen, remembered = torch.from_numpy(observation).to(self.device), torch.from_numpy(memory).to(self.device)
            features, behind = self._policy.remembered(seen, remembered)
            asked = ["policy", "value"] if self.has_value else ["policy"]
            output = torch.cat([self._policy.stacks[name](features) for name in asked], -1)
            return output.float().cpu().numpy(), behind.float().cpu().numpy()

    def output(self, observation: np.ndarray) -> np.ndarray:
        """As where an episode begins."""
        return self.step(observation, np.zeros((len(observation), self.memory_size), np.float32))[0]


def draw_orthogonal(layers: Iterable[nn.Module], gain: float, random: torch.Generator) -> None:
    """Orthogonal weights for the convolutions and linear layers among these, in their order; biases are zero."""
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(layer.weight, gain, generator=random)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
