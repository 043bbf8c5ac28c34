"""Policies for control: a categorical or Gaussian multi-layer perceptron, with a critic on a trunk of its own.

Acting and learning are different work. Learning (`MLPPolicy.evaluate`) sees thousands of decisions at once and needs gradients;
acting sees a handful of observations thousands of times in a row with weights that do not move. `Actor` is the second: the
weights as they stand, both trunks fused into one, and all that can wait until the rollout is over left until then.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from upslope.errors import MethodError, UserError, did_you_mean
from upslope.runtime.seeding import generator
from upslope.types import Head, Trajectories, View


class Activation(NamedTuple):
    """The same function for learning (torch) and for acting (numpy)."""

    learning: Callable[[Tensor], Tensor]
    acting: Callable[[np.ndarray], np.ndarray]


ACTIVATIONS = {
    "tanh": Activation(torch.tanh, np.tanh),
    "relu": Activation(torch.relu, lambda hidden: np.maximum(hidden, 0)),
    "silu": Activation(F.silu, lambda hidden: hidden / (1 + np.exp(-hidden.clip(-80)))),  # beyond that exp overflows
}
DECISIONS_PER_SLICE = 1 << 17
LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class ControlInputs:
    """What a control policy looks at again when it learns."""

    observation: Tensor
    """``[N, T, D]``, as the policy saw it: normalised, if the rollout normalises."""

    def take(self, pick) -> ControlInputs:
        return ControlInputs(pick(self.observation))


class Acted(NamedTuple):
    """An action and what the policy thought of it, ``[B]`` each; ``value`` is absent without a critic."""

    action: Tensor
    """Ids ``[B]`` or vectors ``[B, D]``. Gaussian actions are as drawn: the environment's side clips them to its box."""
    logp: Tensor
    entropy: Tensor | None
    value: Tensor | None


@dataclass(frozen=True)
class Sizes:
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
    observation and starts at 1. Actions are drawn at temperature one.

    Args:
        observation_size: Numbers in an observation.
        actions: Choices, or dimensions if ``continuous``.
        seed: Of the initial weights. The global generator is not touched.
    """

    domain = "control"
    cut = "decision"

    def __init__(self, observation_size: int, actions: int, continuous: bool, *, hidden: Sequence[int] = (64, 64),
                 activation: str = "tanh", seed: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.sizes = Sizes(observation_size, actions, continuous, tuple(hidden), activation)
        self.actor = _stack(self.sizes, actions, 0.01, generator(seed, "policy"))
        self.log_std = nn.Parameter(torch.zeros(actions)) if continuous else None
        self.critic: nn.ModuleList | None = None
        self.heads = nn.ModuleDict()
        """Further outputs by name, each on a trunk of its own; acting does not need them."""

    @classmethod
    def for_task(cls, task: Any, *, hidden: Sequence[int] = (64, 64), activation: str = "tanh", seed: int = 0) -> MLPPolicy:
        """A policy that fits a control task's observations and actions."""
        return cls(task.observation_size, task.action_size, task.continuous, hidden=hidden, activation=activation, seed=seed)

    # -- the critic ----------------------------------------------------------------------------------------------------

    def add_value_head(self, seed: int = 0) -> None:
        """Build the critic, on a trunk of its own; one that is there stays as it is."""
        if self.critic is None:
            weight = next(self.actor.parameters())
            self.critic = _stack(self.sizes, 1, 1.0, generator(seed, "value")).to(weight.device, weight.dtype)

    def add_head(self, name: str, head: Head, seed: int) -> None:
        """A further output for learning, on a trunk of its own; ``value`` is the critic."""
        if head.outputs != 1:
            raise MethodError(f"the model {name!r} has {head.outputs} outputs; control policies have one output per head.")
        if name == "value":
            self.add_value_head(seed)
        elif name not in self.heads:
            weight = next(self.actor.parameters())
            self.heads[name] = _stack(self.sizes, 1, 1.0, generator(seed, name)).to(weight.device, weight.dtype)

    def value(self, observation: Tensor) -> Tensor:
        """Value of observations ``[..., D]``, as ``[...]``."""
        if self.critic is None:
            raise MethodError("a value was asked of a policy without a critic. Call add_value_head(seed) before the first rollout.")
        return self._forward(self.critic, observation).squeeze(-1)

    # -- acting --------------------------------------------------------------------------------------------------------

    def acting(self) -> Actor:
        """The policy as it stands now, made for acting; later updates do not reach it."""
        return Actor(self)

    def act(self, observation: Tensor, noise: Tensor, greedy: bool = False) -> Acted:
        """Act once on observations ``[B, D]``. A loop takes one `acting` and uses that instead.

        Args:
            noise: Uniforms ``[B]`` for discrete actions, normals ``[B, D]`` for continuous ones.
            greedy: Take the likeliest action; the noise is not looked at.
        """
        actor = self.acting()
        output = actor.output(observation.float().cpu().numpy())
        action = torch.from_numpy(actor.choose(output, noise.cpu().numpy(), greedy))
        view = actor.view(torch.from_numpy(output), action)
        return Acted(action, view.logp, view.entropy, view.value)

    # -- learning ------------------------------------------------------------------------------------------------------

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset()) -> View:
        """Log-probabilities ``[N, T]`` of the recorded joint actions, and ``entropy`` and ``value`` if needed, with gradient."""
        observation, action = rows.inputs.observation, rows.action
        if action is None:
            raise MethodError("these rows have no actions to evaluate.")
        parameters = self._forward(self.actor, observation)
        logp, entropy = _logp_and_entropy(parameters, action, self.log_std, "entropy" in needs)
        more = {name: self._forward(self.heads[name], observation).squeeze(-1) for name in needs if name in self.heads}
        return View(logp, entropy, self.value(observation) if "value" in needs else None, more)

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        """What each row costs of the `token_budget`: its positions ``[N]``."""
        return torch.full((rows.rows,), rows.sampled.shape[1], dtype=torch.int64)

    def token_budget(self) -> int:
        """Decisions that are evaluated at once; a network of this size never fills a memory with fewer."""
        return DECISIONS_PER_SLICE

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by who they belong to: ``policy`` and ``value`` (empty without a critic)."""
        spread = [] if self.log_std is None else [self.log_std]
        critic = [] if self.critic is None else list(self.critic.parameters())
        heads = {name: list(head.parameters()) for name, head in self.heads.items()}
        return {"policy": [*self.actor.parameters(), *spread], "value": critic, **heads}

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.actor.parameters()).device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def frozen_copy(self) -> MLPPolicy:
        """The same weights in a policy that does not learn."""
        return copy.deepcopy(self).requires_grad_(False)

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, for a checkpoint."""
        return dict(self.state_dict())

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""
        self.load_state_dict(weights)

    def save(self, folder: Path | str) -> None:
        """Write ``policy.safetensors`` and ``policy.json``, each whole or not at all."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.detach().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / "policy.safetensors.part")
        description = {"kind": "mlp", **asdict(self.sizes), "value_head": self.critic is not None, "heads": list(self.heads)}
        (folder / "policy.json.part").write_text(json.dumps(description, indent=2) + "\n")
        for name in ("policy.safetensors", "policy.json"):
            os.replace(folder / f"{name}.part", folder / name)

    def load(self, folder: Path | str) -> None:
        """Take the weights of a policy of the same sizes; a critic saved with it is added if there is none."""
        from safetensors.torch import load_file

        sizes, value_head, heads = _read_description(Path(folder))
        if sizes != self.sizes:
            raise UserError(f"the policy in {folder} has {sizes}, this one {self.sizes}: they must be the same.")
        for name in heads:
            self.add_head(name, Head(), 0)
        if value_head:
            self.add_value_head()
        elif self.critic is not None:
            raise UserError(f"the policy in {folder} has no critic, and this one has: load it before add_value_head.")
        self.load_state_dict(load_file(Path(folder) / "policy.safetensors"))

    @classmethod
    def from_folder(cls, folder: Path | str) -> MLPPolicy:
        """The policy that was saved there."""
        sizes, _, _ = _read_description(Path(folder))
        policy = cls(sizes.observation, sizes.actions, sizes.continuous, hidden=sizes.hidden, activation=sizes.activation)
        policy.load(folder)
        return policy

    def _forward(self, stack: Any, observation: Tensor) -> Tensor:
        """The last layer's output, float32 whatever the weights are."""
        weight, activation = next(stack.parameters()), ACTIVATIONS[self.sizes.activation].learning
        hidden = observation.to(weight.device, weight.dtype)
        *inner, head = stack
        for layer in inner:
            hidden = activation(layer(hidden))
        return head(hidden).float()


class Actor:
    """A policy's weights as they stood when it was made: actor and critic fused, on the CPU, where environments are.

    The first layers are stacked, later ones stand on the diagonal of one matrix: a step costs one small product per layer
    instead of two. It computes in numpy: on a handful of observations the calls are what costs, and numpy's cost less than half of
    torch's. Only what the next step waits for is worked out at once; `view` does the rest for a whole rollout.
    """

    def __init__(self, policy: MLPPolicy) -> None:
        stacks = [policy.actor] + ([policy.critic] if policy.critic is not None else [])
        self.has_value = len(stacks) == 2
        self.activation = ACTIVATIONS[policy.sizes.activation].acting
        self.log_std = policy.log_std.detach().float().cpu() if policy.log_std is not None else None
        self._std = self.log_std.exp().numpy() if self.log_std is not None else None
        self._weights: list[tuple[np.ndarray, np.ndarray]] = []
        for depth, layers in enumerate(zip(*stacks, strict=True)):
            blocks = [layer.weight.detach().float().cpu() for layer in layers]
            joined = torch.cat(blocks) if depth == 0 else torch.block_diag(*blocks)
            bias = torch.cat([layer.bias.detach().float().cpu() for layer in layers])
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
        mass = np.exp(parameters - parameters.max(-1, keepdims=True)).cumsum(-1)
        return (mass <= noise[:, None] * mass[:, -1:]).sum(-1)

    def view(self, output: Tensor, action: Tensor) -> View:
        """What was thought of the actions, for outputs with any leading axes: a whole rollout in one call."""
        parameters = output[..., :-1] if self.has_value else output
        logp, entropy = _logp_and_entropy(parameters, action, self.log_std, True)
        return View(logp, entropy, output[..., -1] if self.has_value else None)

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Values ``[B]``; zeros without a critic, as where nothing is known behind a cut."""
        return self.output(observation)[:, -1] if self.has_value else np.zeros(len(observation), np.float32)


def _logp_and_entropy(parameters: Tensor, action: Tensor, log_std: Tensor | None, want_entropy: bool) -> tuple[Tensor, Any]:
    """Of the joint action, over any leading axes: categorical in logits, or Gaussian in means with ``log_std [D]``."""
    if log_std is None:
        logs = parameters.log_softmax(-1)
        logp = logs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return logp, -(logs.exp() * logs).sum(-1) if want_entropy else None
    log_std = log_std.float()
    distance = ((action - parameters) * torch.exp(-log_std)).square().sum(-1)
    logp = -0.5 * distance - log_std.sum() - 0.5 * LOG_TWO_PI * len(log_std)
    entropy = (log_std.sum() + 0.5 * (1 + LOG_TWO_PI) * len(log_std)).expand(logp.shape)
    return logp, entropy if want_entropy else None


def _stack(sizes: Sizes, outputs: int, head_gain: float, random: torch.Generator) -> nn.ModuleList:
    widths = [sizes.observation, *sizes.hidden, outputs]
    layers = []
    for position in range(len(widths) - 1):
        # Made without values: the layer's own initialisation draws from the global generator.
        layer = nn.utils.skip_init(nn.Linear, widths[position], widths[position + 1])
        gain = head_gain if position == len(widths) - 2 else math.sqrt(2)
        nn.init.orthogonal_(layer.weight, gain, generator=random)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
    return nn.ModuleList(layers)


def _read_description(folder: Path) -> tuple[Sizes, bool, list[str]]:
    path = folder / "policy.json"
    try:
        described = json.loads(path.read_text())
        sizes = Sizes(**{name: described[name] for name in Sizes.__dataclass_fields__})
        return sizes, bool(described["value_head"]), list(described.get("heads", []))
    except FileNotFoundError:
        raise UserError(f"no policy.json in {folder}. Give the folder of a saved policy.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} does not describe a control policy: {error!r}.") from None
