"""A policy made of torch networks: the actor, the models that learn beside it, and their slowly following copies.

All that a run learns from stored experience is in here, so that a checkpoint holds it in one file and a copy is whole.
Where no actor is named, the policy takes the choice that a model of it values most.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.objective.networks.balance import sinusoids
from upslope.objective.networks.layers import FlatModule, follow
from upslope.objective.networks.pair import Pair
from upslope.policies.control.actor import WithoutMemory
from upslope.policies.control.actors import LOG_STD, NUMPY_ACTIVATIONS, GaussianActor, numpy_forward, torch_forward
from upslope.policies.control.greedy import GreedyNetwork, dense_layers
from upslope.policies.control.saved_policy import read_weights, take_weights, write_policy
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.seeding import mix
from upslope.types import ActionSpace, Learned, Solved, Trajectories, View

POLICY = "policy"
"""The actor's name among the networks."""
VALUE, CRITIC = "value", "q"
"""What methods call their value function of states and their critics of actions."""
RARE = 64
"""Updates between two moves of a copy above which it moves seldom."""


@dataclass(frozen=True, eq=False)
class ActionBox:
    """The box of an environment's actions, which policies see as [-1, 1]; a side without an end is left as it is."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, space: Any) -> ActionBox:
        low, high = np.asarray(space.low, np.float32).reshape(-1), np.asarray(space.high, np.float32).reshape(-1)
        bounded = np.isfinite(low) & np.isfinite(high)
        return cls(np.where(bounded, low, -1.0).astype(np.float32), np.where(bounded, high, 1.0).astype(np.float32))

    def from_unit(self, action: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1] as the environment takes them."""
        return self.low + 0.5 * (action + 1.0) * (self.high - self.low)

    def to_unit(self, action: np.ndarray) -> np.ndarray:
        """The environment's actions as [-1, 1]."""
        return (2.0 * (action - self.low) / (self.high - self.low) - 1.0).astype(np.float32)


class NetworkPolicy(nn.Module):
    """An actor and the models beside it.

    Args:
        space: What the networks must know of the task.
        actor: The policy's own network; none where ``reads`` names a model whose best choice is taken.
        box: The environment's actions, where they are vectors.
        lag: How far the actor's slowly following copy moves each time; 0 keeps none.
    """

    domain = "control"
    independent_decisions = True
    pads = True

    def __init__(self, space: ActionSpace, actor: nn.Module | None, box: ActionBox | None, lag: float = 0.0, lag_every: int = 1,
                 reads: str = "") -> None:  # fmt: skip
        super().__init__()
        self.space, self.box, self.reads = space, box, reads
        self.plain = False
        self.chosen_by = ""
        """The model that chooses the coefficient the actor is asked with, where it stands for a family of policies."""
        self.networks, self.lagged = nn.ModuleDict(), nn.ModuleDict()
        self._followers: dict[str, list[tuple[FlatModule, FlatModule]]] = {}
        self.lags: dict[str, tuple[float, int]] = {}
        """Of each network with a slowly following copy: how far that moves, and every how many updates."""
        if actor is not None:
            self._add(POLICY, actor, lag, lag_every)

    def add_model(self, name: str, model: Learned | Solved, seed: int) -> None:
        """The network of a model, and its slowly following copy if it has one."""
        network = model.model_network().build(self.space, model.takes_action, mix(seed, name))
        self._add(name, network, model.lag, model.lag_every)

    def _add(self, name: str, network: nn.Module, lag: float, lag_every: int) -> None:
        self.networks[name] = network
        if lag:
            self.lags[name] = (lag, lag_every)
            self.lagged[name] = frozen(copy.deepcopy(network))
            self._followers[name] = list(zip(flat_modules(self.lagged[name]), flat_modules(network), strict=True))

    @property
    def actor(self) -> Any:
        """The policy's own network."""
        return self.networks[POLICY]

    def follow(self, update: int, rarely: bool | None = None) -> None:
        """Moves the slowly following copies that are due behind this update (the first is 1).

        Args:
            rarely: Only those that move seldom (`RARE`), or only the others.
        """
        for name, (rate, every) in self.lags.items():
            if update % every == 0 and rarely in (None, every > RARE):
                for lagged, module in self._followers[name]:
                    follow(lagged, module, rate)

    # -- acting --------------------------------------------------------------------------------------------------------

    def acting(self) -> NetworkActor:
        """The policy for acting. It reads the weights where they are: later updates reach it."""
        return NetworkActor(self)

    def greedy_network(self) -> GreedyNetwork:
        """How the action comes from an observation where nothing is drawn.

        Raises:
            UserError: if a model chooses a coefficient in between, or there are two networks.
        """
        if self.chosen_by:
            raise UserError(
                f"this policy asks the model {self.chosen_by!r} for a coefficient before it acts, and only networks that go from "
                "an observation to an action are written as a file. up.load(RUN).predict answers for it."
            )
        network: Any = self.networks[self.reads or POLICY]
        if isinstance(network, Pair):
            raise UserError(
                "this policy is a pair, of which the task's number chooses one, and only a single network is written as a file. "
                "up.load(RUN).predict answers for it."
            )
        members, activation, size = dense_layers(network.stack), network.stack.activation, self.space.actions
        if self.space.discrete:
            return GreedyNetwork(members, activation, "best", size)
        if not isinstance(network, GaussianActor):
            return GreedyNetwork(members, activation, "tanh", size)
        if network.shared is None:
            return GreedyNetwork(members, activation, "tanh", size, "state", None, LOG_STD)
        spread = network.shared.frozen["log_std"].detach().float().cpu().clamp(*LOG_STD)
        return GreedyNetwork(members, activation, "tanh", size, "shared", spread)

    def shown(self, observation: Tensor) -> Tensor:
        """What the actor looks at ``[N, T, ...]``: the observation, and the coefficient for it where one is chosen."""
        if not self.chosen_by:
            return observation
        with torch.no_grad():
            coefficient = cast(Any, self.networks[self.chosen_by]).certain(observation, True)
        return torch.cat([observation, coefficient.unsqueeze(-1)], -1)

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset()) -> View:
        """Log-probabilities ``[N, T]`` of the recorded actions."""
        assert rows.action is not None
        seen, masked = self.shown(rows.inputs.observation), mask_arguments(rows.inputs.action_mask)
        return View(self.actor.logp(seen, rows.action.unsqueeze(2), frozen=False, **masked).squeeze(2))

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by network."""
        return {name: list(network.parameters()) for name, network in self.networks.items()}

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.networks.parameters())

    def frozen_copy(self) -> NetworkPolicy:
        """The same weights in a policy that does not learn."""
        return frozen(copy.deepcopy(self))

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, as views, those of the slowly following copies among them."""
        found: dict[str, Tensor] = {}
        for kind, networks in (("", self.networks), ("lagged.", self.lagged)):
            for name, network in networks.items():
                for path, module in network.named_modules():
                    if isinstance(module, FlatModule):
                        own = f"{kind}{name}.{path}." if path != "stack" else f"{kind}{name}."
                        found |= {f"{own}{piece}": view for piece, view in module.stored().items()}
        return found

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""
        take_weights(self.weights(), weights)

    def save(self, folder: Path | str | CheckpointWriter) -> None:
        """Write ``policy.safetensors`` and ``policy.json``, each whole or not at all."""
        described = {"kind": "networks", "observation": list(self.space.observation), "actions": self.space.actions,
                     "discrete": self.space.discrete, "networks": list(self.networks), "reads": self.reads}  # fmt: skip
        write_policy(folder, described, self.weights())

    def load(self, folder: Path | str | CheckpointReader) -> None:
        """Take the weights of a policy of the same networks.

        Raises:
            Damaged: if the files are not what was written.
        """
        self.load_weights(read_weights(folder, "networks"))


class NetworkActor(WithoutMemory):
    """A `NetworkPolicy` made to act, observation by observation: small networks on the CPU, where environments are, those with an
    encoder where their weights are."""

    has_value = False

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        asked = [policy.reads or POLICY, *([policy.chosen_by] if policy.chosen_by else [])]
        self._sources: list[Any] = [policy.networks[name] for name in asked]
        self._encoder: Any = getattr(self._sources[0], "encoder", None)
        elsewhere = policy.device.type != "cpu" and self._encoder is None
        self._copies: list[Any] = [copy.deepcopy(source).cpu() for source in self._sources] if elsewhere else self._sources
        """The networks that are asked."""
        self._here, self._chooser = self._copies[0], self._copies[-1] if policy.chosen_by else None
        stack: Any = self._here.first.stack if isinstance(self._here, Pair) else self._here.stack
        self._stack, self._in_numpy = stack, not policy.plain and stack.activation in NUMPY_ACTIVATIONS

    def refresh(self) -> None:
        """Take the weights as they are now, where copies of them act."""
        if self._copies is self._sources:
            return
        for here, there in zip(self._copies, self._sources, strict=True):
            for own, new in zip(flat_modules(here), flat_modules(there), strict=True):
                own.flat.data.copy_(new.flat.data)

    def output(self, observation: np.ndarray) -> np.ndarray:
        """What the actor's network puts out, ``[B, O]``; where the policy reads a model, the mean of its members' values.

        Of a pair it is what the task's network puts out, and behind it the number of the task.
        """
        if self._chooser is not None:
            with torch.no_grad():
                coefficient = self._chooser.certain(torch.from_numpy(observation).unsqueeze(1), True).squeeze(1)
            observation = np.concatenate([observation, sinusoids(coefficient).numpy()], -1)
        if self._encoder is not None:
            with torch.no_grad():
                features = self._encoder(torch.from_numpy(observation).to(self.policy.device), True)
                return self._stack(features, True).mean(0).cpu().numpy()
        if not isinstance(self._here, Pair):
            return self._of(self._stack, observation)
        own, task = np.ascontiguousarray(observation[:, :-1]), observation[:, -1:]
        found = np.where(task > 0, self._of(self._here.second.stack, own), self._of(self._stack, own))
        return found if self.policy.reads else np.concatenate([found, task], -1)

    def _of(self, stack: Any, observation: np.ndarray) -> np.ndarray:
        if not self.policy.reads:
            return numpy_forward(stack, observation) if self._in_numpy else torch_forward(stack, observation)[0]
        found = numpy_forward(stack, observation, None) if self._in_numpy else torch_forward(stack, observation)
        return found.mean(0)

    def unit(self, output: np.ndarray, noise: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions in [-1, 1], or ids."""
        if self.policy.reads:
            return output.argmax(-1)
        return self._here.choose(output, noise, greedy)

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions as the environment takes them."""
        action = self.unit(output, noise, greedy)
        return action if self.policy.box is None else self.policy.box.from_unit(action)

    def judged(self, observation: np.ndarray, output: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """What is expected from here on, ``[B]``: the value of the state, else the critics' smallest of the action, else nothing.

        Args:
            action: As the environment takes it.
        """
        policy, seen = self.policy, torch.from_numpy(observation).unsqueeze(1)
        model: Any = next((policy.networks[name] for name in (VALUE, CRITIC) if name in policy.networks), None)
        if not hasattr(model, "answer"):
            return None
        unit = torch.from_numpy(action if policy.box is None else policy.box.to_unit(action))
        with torch.no_grad():
            found = model.answer(seen.to(policy.device), unit.to(policy.device)[:, None, None], True)
        return found.amin(0).flatten().cpu().numpy()

    def value(self, observation: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Zeros: what a critic thinks depends on the action."""
        return np.zeros(len(observation), np.float32)


def mask_arguments(mask: Tensor | None) -> dict[str, Tensor]:
    """The argument ``mask`` for actors of choices, where some are forbidden; those of vectors have none."""
    return {} if mask is None else {"mask": mask}


def frozen(module: Any) -> Any:
    """The module with no weight that learns."""
    module.requires_grad_(False)
    for each in flat_modules(module):
        each.requires_grad_(False)
    return module


def flat_modules(module: nn.Module) -> list[FlatModule]:
    """What of a network holds weights."""
    return [each for each in module.modules() if isinstance(each, FlatModule)]
