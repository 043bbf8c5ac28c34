"""Policies for control: a categorical or Gaussian multi-layer perceptron, with a critic on a trunk of its own.

Acting and learning are different work. Learning (`MLPPolicy.evaluate`) sees a minibatch of decisions and needs gradients; acting
sees a handful of observations thousands of times in a row with weights that do not move (`upslope.policies.control.actor`). Both
are written out in numpy (`network`); ``plain`` takes torch's own operations instead (`plain`).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from upslope.errors import MethodError, UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.policies.control.actor import Acted, Actor
from upslope.policies.control.greedy import DenseLayer, GreedyNetwork
from upslope.policies.control.network import (
    ACTIVATIONS,
    LayerStack,
    NetworkFunction,
    NetworkPass,
    stack_size,
)
from upslope.policies.control.plain import PlainActor, PlainPass
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, as_reader, saving
from upslope.runtime.seeding import generator
from upslope.types import Head, Trajectories, View

DECISIONS_PER_SLICE = 1 << 17


@dataclass(frozen=True, eq=False)
class ControlInputs:
    """What a control policy looks at again when it learns."""

    observation: Tensor
    """``[N, T, D]``, as the policy saw it: normalised, if the rollout normalises. Images ``[N, T, ...]`` are bytes."""
    memory: Tensor | None = None
    """``[N, S]``: what was remembered in front of each row, of policies that remember."""

    def take(self, pick) -> ControlInputs:
        return ControlInputs(pick(self.observation), None if self.memory is None else pick(self.memory))


@dataclass(frozen=True)
class MLPSizes:
    """All it takes to build the network again.

    Fields:
        observation: Numbers in an observation.
        actions: Choices of a discrete action, or dimensions of a continuous one.
        continuous: Gaussian rather than categorical.
        hidden: Widths of the hidden layers, of actor and critic alike. Wider fits more and acts slower.
        activation: ``tanh``, ``relu`` or ``silu``. Bounded tanh is the safer one for on-policy control.
    """

    observation: int
    actions: int
    continuous: bool
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(int(width) for width in self.hidden))
        if self.activation not in ACTIVATIONS:
            raise UserError(f"no activation named {self.activation!r}.{did_you_mean(self.activation, ACTIVATIONS)} "
                            f"There are {', '.join(ACTIVATIONS)}.")  # fmt: skip
        if not self.hidden or min(self.hidden) < 1:
            raise UserError(f"hidden={self.hidden!r}: give the width of at least one hidden layer, each 1 or more.")


class MLPPolicy(nn.Module):
    """Picks actions from a vector. Made without a critic; `add_value_head` gives it one.

    Initialisation is orthogonal: gain sqrt(2) inside, 1 for the critic's head, and 0.01 for the actor's, so that every policy
    starts near uniform (or near zero mean) whatever its first weights. The Gaussian's standard deviation does not depend on the
    observation and starts at ``exp(log_std)``. Actions are drawn at temperature one.

    Args:
        observation_size: Numbers in an observation.
        actions: Choices, or dimensions if ``continuous``.
        log_std: Of a Gaussian policy, where it starts; later it is learned.
        seed: Of the initial weights. The global generator is not touched.
    """

    domain = "control"
    independent_decisions = True
    pads = True

    def __init__(self, observation_size: int, actions: int, continuous: bool, *, hidden: Sequence[int] = (64, 64),
                 activation: str = "tanh", log_std: float = 0.0, seed: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.sizes = MLPSizes(observation_size, actions, continuous, tuple(hidden), activation)
        self.plain = False
        """Compute with torch's own operations: slower, and what the fast way is held against."""
        self.flat = nn.ParameterDict()
        """The weights of each stack as one vector: ``policy`` (``log_std`` at its end), ``value`` and further heads by name."""
        self._add_stack("policy", 0.01, generator(seed, "policy"))
        if self.log_std is not None:
            self.log_std.fill_(log_std)

    @classmethod
    def for_task(cls, task: Any, **options: Any) -> MLPPolicy:
        """A policy that fits a control task's observations and actions; the options are those of the class.

        Raises:
            MethodError: if the task's observations are images.
        """
        if len(getattr(task, "observation_shape", ())) > 1:
            raise MethodError(
                f"{task.name} has images as observations, {task.observation_space}; an MLPPolicy takes vectors. Take what the part "
                "MLP() builds for a task, or an environment that reports its state as numbers."
            )
        return cls(task.observation_size, task.action_size, task.continuous, **options)

    # -- the critic ----------------------------------------------------------------------------------------------------

    @property
    def actor(self) -> LayerStack:
        return self._stacks["policy"]

    @property
    def critic(self) -> LayerStack | None:
        return self._stacks.get("value")

    @property
    def heads(self) -> list[str]:
        """Names of further outputs, each on a trunk of its own; acting does not need them."""
        return [name for name in self.flat if name not in ("policy", "value")]

    def add_value_head(self, seed: int = 0) -> None:
        """Build the critic, on a trunk of its own; one that is there stays as it is."""
        self.add_head("value", Head(), seed)

    def add_head(self, name: str, head: Head, seed: int) -> None:
        """A further output for learning, on a trunk of its own; ``value`` is the critic."""
        if head.outputs != 1:
            raise MethodError(f"the model {name!r} has {head.outputs} outputs; control policies have one output per head.")
        if name not in self.flat:
            self._add_stack(name, 1.0, generator(seed, name))

    def value(self, observation: Tensor) -> Tensor:
        """Value of observations ``[..., D]``, as ``[...]``, without gradient."""
        if self.critic is None:
            raise MethodError("a value was asked of a policy without a critic. Call add_value_head(seed) before the first rollout.")
        output, _ = self.critic.forward(self._flat_inputs(observation))
        return torch.from_numpy(output).reshape(observation.shape[:-1])

    # -- acting --------------------------------------------------------------------------------------------------------

    def acting(self) -> Actor:
        """The policy as it stands now, made for acting; later updates do not reach it."""
        return PlainActor(self) if self.plain else Actor(self)

    def act(self, observation: Tensor, noise: Tensor, greedy: bool = False) -> Acted:
        """Act once on observations ``[B, D]``. A loop takes one `acting` and uses that instead.

        Args:
            noise: Uniforms ``[B]`` for discrete actions, normals ``[B, D]`` for continuous ones.
            greedy: Take the likeliest action; the noise is not looked at.
        """
        actor = self.acting()
        output = actor.output(observation.float().numpy())
        action = actor.choose(output, noise.numpy(), greedy)
        view = actor.view(output, action)
        return Acted(torch.from_numpy(action), view.logp, view.entropy, view.value)

    def greedy_network(self) -> GreedyNetwork:
        """How the likeliest action comes from an observation."""
        layers = tuple(DenseLayer(layer.weight.float().clone(), layer.bias.float().clone()) for layer in self.actor)
        if self.log_std is None:
            return GreedyNetwork((layers,), self.sizes.activation, "best", self.sizes.actions)
        spread = self.log_std.detach().float().clone()
        return GreedyNetwork((layers,), self.sizes.activation, "clipped", self.sizes.actions, "shared", spread)

    # -- learning ------------------------------------------------------------------------------------------------------

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset()) -> View:
        """Log-probabilities ``[N, T]`` of the recorded joint actions, and ``entropy`` and ``value`` if needed, with gradient."""
        done = self.forward_pass(rows, needs)
        if isinstance(done, PlainPass):
            return View.of(done.tensors)
        columns = NetworkFunction.apply(done, *(self.flat[name] for name in done.stacks))
        return View.of(dict(zip(done.columns, columns, strict=True)))

    def forward_pass(self, rows: Trajectories, needs: frozenset[str]) -> NetworkPass | PlainPass:
        """The same as arrays, without torch; `backward_pass` takes it back to the weights."""
        if rows.action is None:
            raise MethodError("these rows have no actions to evaluate.")
        if "value" in needs and self.critic is None:
            raise MethodError("a value was asked of a policy without a critic. Call add_value_head(seed) before the first rollout.")
        stacks = {name: stack for name, stack in self._stacks.items() if name == "policy" or name in needs}
        if self.plain:
            vectors = {name: (self.flat[name], stack.widths) for name, stack in stacks.items()}
            return PlainPass(vectors, self.sizes, rows.inputs.observation, rows.action, "entropy" in needs)
        action = rows.action.numpy()
        return NetworkPass(
            stacks,
            self._log_std,
            self._flat_inputs(rows.inputs.observation),
            action.reshape(-1, *action.shape[2:]),
            "entropy" in needs,
            action.shape[:2],
        )

    def backward_pass(self, done: NetworkPass | PlainPass, grads: Mapping[str, np.ndarray]) -> float:
        """Sets the gradient of every vector, given those of a forward pass's columns, and returns the norm of all together."""
        if isinstance(done, PlainPass):
            self.zero_grad(set_to_none=True)
            done.backward(grads)
            return math.sqrt(sum(float(flat.grad.double().square().sum()) for flat in self.parameters() if flat.grad is not None))
        found = done.gradients(grads)
        for name, flat, gradient in self._gradients:
            flat.grad = gradient if name in found else None
        return math.sqrt(sum(float(np.dot(grad, grad)) for grad in found.values()))

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        """What each row costs of the `token_budget`: its positions ``[N]``."""
        return torch.full((rows.rows,), rows.sampled.shape[1], dtype=torch.int64)

    def token_budget(self) -> int:
        """Decisions that are evaluated at once; a network of this size never fills a memory with fewer."""
        return DECISIONS_PER_SLICE

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by who they belong to, a vector each: ``policy``, ``value`` (empty without a critic) and further heads."""
        return {"policy": [], "value": [], **{name: [flat] for name, flat in self.flat.items()}}

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.flat["policy"].device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def frozen_copy(self) -> MLPPolicy:
        """The same weights in a policy that does not learn."""
        return copy.deepcopy(self).requires_grad_(False)

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, as views, for a checkpoint."""
        found: dict[str, Tensor] = {}
        for name, stack in self._stacks.items():
            place = {"policy": "actor", "value": "critic"}.get(name, f"heads.{name}")
            for position, layer in enumerate(stack):
                found |= {f"{place}.{position}.{kind}": view for kind, view in layer._asdict().items()}
        return found if self.log_std is None else {**found, "log_std": self.log_std}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""
        own = self.weights()
        differing = sorted(set(own) ^ set(weights))
        if differing:
            raise UserError(f"these weights are of another network: only one of the two has {', '.join(differing)}.")
        for name, view in own.items():
            view.copy_(weights[name])

    def save(self, folder: Path | str | CheckpointWriter) -> None:
        """Write ``policy.safetensors`` and ``policy.json``, each whole or not at all."""
        description = {"kind": "mlp", **asdict(self.sizes), "value_head": self.critic is not None, "heads": self.heads}
        with saving(folder) as files:
            files.write_tensors("policy.safetensors", self.weights())
            files.write("policy.json", (json.dumps(description, indent=2) + "\n").encode())

    def load(self, folder: Path | str | CheckpointReader) -> None:
        """Take the weights of a policy of the same sizes; a critic saved with it is added if there is none.

        Raises:
            Damaged: if the files are not what was written.
        """
        files = as_reader(folder)
        sizes, value_head, heads = _read_description(files)
        if sizes != self.sizes:
            raise UserError(f"the policy in {files.folder} has {sizes}, this one {self.sizes}: they must be the same.")
        for name in heads:
            self.add_head(name, Head(), 0)
        if value_head:
            self.add_value_head()
        elif self.critic is not None:
            raise UserError(f"the policy in {files.folder} has no critic, and this one has: load it before add_value_head.")
        self.load_weights(files.read_tensors("policy.safetensors"))

    @classmethod
    def from_folder(cls, folder: Path | str) -> MLPPolicy:
        """The policy that was saved there."""
        sizes, _, _ = _read_description(as_reader(folder))
        policy = cls(sizes.observation, sizes.actions, sizes.continuous, hidden=sizes.hidden, activation=sizes.activation)
        policy.load(folder)
        return policy

    # -- the vectors ---------------------------------------------------------------------------------------------------

    def _add_stack(self, name: str, head_gain: float, random: torch.Generator) -> None:
        spread = self.sizes.actions if name == "policy" and self.sizes.continuous else 0
        like = self.flat["policy"] if name != "policy" else None
        size = stack_size(self._widths(name)) + spread
        self.flat[name] = nn.Parameter(torch.zeros(size, dtype=None if like is None else like.dtype))
        self._make_views()
        self._stacks[name].initialise(head_gain, random)

    def _widths(self, name: str) -> tuple[int, ...]:
        return (self.sizes.observation, *self.sizes.hidden, self.sizes.actions if name == "policy" else 1)

    def _make_views(self) -> None:
        """Layers and spread as views of the vectors, which may just have been made, copied or converted."""
        activation = ACTIVATIONS[self.sizes.activation]
        self._stacks = {name: LayerStack(flat, self._widths(name), activation) for name, flat in self.flat.items()}
        self._gradients = [(name, flat, torch.from_numpy(self._stacks[name].gradient)) for name, flat in self.flat.items()]
        self.log_std = self.flat["policy"].detach()[-self.sizes.actions :] if self.sizes.continuous else None
        self._log_std = None if self.log_std is None else self.log_std.numpy()

    def _flat_inputs(self, observation: Tensor) -> np.ndarray:
        """Observations ``[..., D]`` as ``[M, D]`` in the weights' own kind of number."""
        return observation.numpy().reshape(-1, self.sizes.observation).astype(self.actor.gradient.dtype, copy=False)

    def _apply(self, fn: object, recurse: bool = True) -> MLPPolicy:
        super()._apply(fn, recurse)
        self._make_views()
        return self

    def __getstate__(self) -> JsonDict:
        views = ("_stacks", "_gradients", "log_std", "_log_std")  # a copy of a view would be a tensor of its own
        return {name: value for name, value in self.__dict__.items() if name not in views}

    def __setstate__(self, state: JsonDict) -> None:
        super().__setstate__(state)
        self._make_views()


def _read_description(files: CheckpointReader) -> tuple[MLPSizes, bool, list[str]]:
    path = files.folder / "policy.json"
    if not path.is_file() and not files.verified:
        raise UserError(f"no policy.json in {files.folder}. Give the folder of a saved policy.")
    described = files.read_json("policy.json")
    try:
        sizes = MLPSizes(**{name: described[name] for name in MLPSizes.__dataclass_fields__})
        return sizes, bool(described["value_head"]), list(described.get("heads", []))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} does not describe a control policy: {error!r}.") from None
