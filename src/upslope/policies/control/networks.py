"""Networks of control policies, as parts of a method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from upslope.errors import MethodError
from upslope.fields import shown
from upslope.objective.networks.balance import WAVES
from upslope.objective.networks.encoders import CombinedEncoder, DefaultEncoder, Encoder, ImageEncoder, flat_encoder, vector_size
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.objective.networks.layers import FlatModule, MLPStack
from upslope.objective.networks.mlp import HiddenLayers
from upslope.plain_data import JsonDict
from upslope.policies.control.actors import CertainActor, FamilyActor, GaussianActor, SoftmaxActor
from upslope.policies.control.memory import RecurrentMemory
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.network_policy import ActionBox, NetworkPolicy
from upslope.policies.control.own_module import FeatureModule, with_features
from upslope.policies.control.pair_actor import PairActor
from upslope.policies.control.torch_policy import TorchPolicy, draw_orthogonal
from upslope.runtime.seeding import generator, mix
from upslope.types import ActionSpace, Method, Network


@dataclass(frozen=True)
class MLP(Network):
    """A multi-layer perceptron for the actor and one of the same shape for each critic; a Gaussian or categorical policy.

    Fields:
        hidden: widths of the hidden layers, the first nearest to the observation. Wider fits more and acts slower.
        activation: between the layers. Bounded tanh is the safer one for on-policy control.
        log_std: of a Gaussian policy, the logarithm of its standard deviation where training begins. Lower explores less; actions
            that are chosen from a list have none.
        encoder: what makes features of an image, in front of all these layers; actor and critics share it.
    """

    ranges: ClassVar = {"log_std": "[-20, 20]"}

    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    log_std: float = 0.0
    encoder: Encoder = field(default_factory=DefaultEncoder)

    def __post_init__(self) -> None:
        if isinstance(self.hidden, list):
            object.__setattr__(self, "hidden", tuple(self.hidden))

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)
        if not self.hidden or min(self.hidden) < 1 or max(self.hidden) > 2**20:
            raise MethodError(
                f"{path}.hidden of MLP is {shown(self.hidden)}; it must be the width of each hidden layer, at least 1 each: 64,64."
            )

    def build(self, task: Any, seed: int) -> MLPPolicy | TorchPolicy:
        encoder = built_encoder(self.encoder, task, seed)
        options: JsonDict = dict(hidden=self.hidden, activation=self.activation, log_std=self.log_std, seed=seed)
        if encoder is None:
            return MLPPolicy.for_task(task, **options)
        options |= {"encoder": encoder, "components": task.components}
        return TorchPolicy(task.observation_shape, task.action_size, task.continuous, **options)


@dataclass(frozen=True)
class Recurrent(HiddenLayers, Network):
    """A policy that remembers: a recurrent cell over the steps of an episode, and behind it layers for the actor and each critic.

    The cell is shared by actor and critics. Each row of a rollout is learned from whole, from what was remembered in front of it:
    gradients go back to its first step and no further.

    Fields:
        memory: numbers the cell puts out.
        cell: ``gru``, or ``lstm``, which keeps as many numbers again to itself.
        hidden: widths of the layers between the cell and each output.
        activation: between these layers.
        log_std: of a Gaussian policy, the logarithm of its standard deviation where training begins.
        encoder: what makes features of an image, in front of the cell.
    """

    ranges: ClassVar = {"memory": "[1, 65536]", "log_std": "[-20, 20]"}

    memory: int = 64
    cell: Literal["gru", "lstm"] = "gru"
    hidden: tuple[int, ...] = (64,)
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    log_std: float = 0.0
    encoder: Encoder = field(default_factory=DefaultEncoder)

    def build(self, task: Any, seed: int) -> TorchPolicy:
        encoder = built_encoder(self.encoder, task, seed)
        inputs = task.observation_size if encoder is None else encoder.features
        memory = RecurrentMemory(inputs, self.memory, self.cell, seed)
        return TorchPolicy(
            task.observation_shape, task.action_size, task.continuous, hidden=self.hidden, activation=self.activation,
            encoder=encoder, memory=memory, log_std=self.log_std, components=task.components, seed=seed,
        )  # fmt: skip


def built_encoder(encoder: Encoder, task: Any, seed: int) -> FeatureModule | None:
    """The encoder of a policy that learns from rows just sampled; vectors have none, unless one is named.

    Convolutions of ours begin orthogonal, as the layers behind them do.
    """
    layout, own = task.layout, mix(seed, "encoder")
    with torch.random.fork_rng(devices=[]):  # modules draw from torch's own generator when they are made
        if layout.pieces:
            made = encoder.build_combined(layout.pieces, own)
        else:
            made = encoder.build(task.observation_shape, layout.channel_axis, own)
    if isinstance(made, nn.Identity):
        return None
    random = generator(seed, "encoder")
    for each in made.images if isinstance(made, CombinedEncoder) else [made]:
        if isinstance(each, ImageEncoder):
            draw_orthogonal(each.modules(), math.sqrt(2), random)
    return with_features(made, task, type(encoder).__name__)


@dataclass(frozen=True)
class _TorchNetwork(HiddenLayers, Network):
    """What policies of torch networks share.

    Fields:
        hidden: widths of the hidden layers, the first nearest to the observation.
        activation: between the layers.
        layer_norm: normalise what goes into each activation.
        lag: how far a slowly following copy of the policy moves towards it each time; 0 keeps none.
        lag_every: updates between two moves of that copy.
        every: updates of the critics between two of the policy.
        pair: two policies, each for one of the two tasks of an environment that is never reset (`upslope.reset_free`); the last
            number of an observation says which acts.
        encoder: what makes features of an observation. It is the policy's own: critics have one, too.
    """

    ranges: ClassVar = {"lag": "[0, 1]", "lag_every": "[1, inf)", "every": "[1, inf)"}
    fewest_layers: ClassVar[int] = 0

    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["relu", "tanh", "silu", "gelu"] = "relu"
    layer_norm: bool = False
    lag: float = 0.0
    lag_every: int = 1
    every: int = 1
    pair: bool = False
    encoder: Encoder = field(default_factory=DefaultEncoder)

    def layers(self, space: ActionSpace, outputs: int, seed: int, more_inputs: int = 0) -> tuple[MLPStack, FlatNetwork | None]:
        """What leads from an observation to the outputs: the last layers, and the encoder before them."""
        encoder, features = flat_encoder(self.encoder, space, mix(seed, "encoder"))
        widths = (features + more_inputs, *self.hidden, outputs)
        return MLPStack(1, widths, self.activation, self.layer_norm, mix(seed, "actor")), encoder

    def actor(self, space: ActionSpace, seed: int) -> nn.Module:
        """The network that acts."""
        raise NotImplementedError

    def actors(self, space: ActionSpace, seed: int) -> nn.Module:
        """That network, or two of them."""
        return PairActor.build(self.actor, space, seed) if self.pair else self.actor(space, seed)

    def build(self, task: Any, seed: int) -> NetworkPolicy:
        space = space_of(task)
        return NetworkPolicy(space, self.actors(space, seed), box_of(task), self.lag, self.lag_every)


@dataclass(frozen=True)
class Stochastic(_TorchNetwork):
    """A policy that draws its actions: a Gaussian over vectors, a softmax over choices.

    Fields:
        form: of the Gaussian. ``squashed`` is tanh of what is drawn; ``clipped`` has a mean within bounds and clips what is drawn.
        std: whether its spread depends on the ``state`` or is ``shared`` by all.
    """

    form: Literal["squashed", "clipped"] = "squashed"
    std: Literal["state", "shared"] = "state"

    def actor(self, space: ActionSpace, seed: int) -> nn.Module:
        if space.discrete:
            stack, encoder = self.layers(space, space.actions, seed)
            return SoftmaxActor(stack, space.actions, encoder)
        stack, encoder = self.layers(space, space.actions * (2 if self.std == "state" else 1), seed)
        shared = FlatModule({"log_std": torch.zeros(space.actions)}) if self.std == "shared" else None
        return GaussianActor(stack, space.actions, self.form == "squashed", shared, encoder)


@dataclass(frozen=True)
class FamilyOfPolicies(Stochastic):
    """A Gaussian policy for every coefficient within an interval; a model chooses the coefficient of a state (FamO2O).

    To act, it takes the coefficient that the model is most certain of.

    Fields:
        by: the model's name.
    """

    form: Literal["squashed", "clipped"] = "clipped"
    std: Literal["state", "shared"] = "shared"
    by: str = "balance"

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)
        if self.pair:
            raise MethodError(f"{path}.pair of FamilyOfPolicies is True; a family of policies has no pair. Take Stochastic().")

    def actor(self, space: ActionSpace, seed: int) -> nn.Module:
        if space.discrete:
            raise MethodError(
                "policy=FamilyOfPolicies() gives vectors, and this environment's actions are choices. Take iql, or dqn."
            )
        vector_size(space, "policy=FamilyOfPolicies()")
        if self.encoder != DefaultEncoder():
            raise MethodError(f"policy.encoder is {self.encoder}, and policy=FamilyOfPolicies() takes vectors as they are.")
        stack, _ = self.layers(space, space.actions * (2 if self.std == "state" else 1), seed, 2 * WAVES)
        shared = FlatModule({"log_std": torch.zeros(space.actions)}) if self.std == "shared" else None
        return FamilyActor(stack, space.actions, self.form == "squashed", shared)

    def build(self, task: Any, seed: int) -> NetworkPolicy:
        policy = super().build(task, seed)
        policy.chosen_by = self.by
        return policy


@dataclass(frozen=True)
class Deterministic(_TorchNetwork):
    """A policy that is certain: one action vector for an observation."""

    def actor(self, space: ActionSpace, seed: int) -> nn.Module:
        if space.discrete:
            raise MethodError("policy=Deterministic() gives vectors, and this environment's actions are choices. Take dqn, or sac.")
        stack, encoder = self.layers(space, space.actions, seed)
        return CertainActor(stack, space.actions, encoder)


@dataclass(frozen=True)
class GreedyChoice(Network):
    """No network of its own: the choice that a model values most.

    Fields:
        of: the model's name.
    """

    of: str = "q"

    def build(self, task: Any, seed: int) -> NetworkPolicy:
        space = space_of(task)
        if not space.discrete:
            raise MethodError(
                f"policy=GreedyChoice() takes the best of a list of choices, and the actions of {task.name} are vectors. "
                "Take sac or td3."
            )
        return NetworkPolicy(space, None, None, reads=self.of)


def space_of(task: Any) -> ActionSpace:
    """What networks must know of a task.

    Raises:
        MethodError: if an action consists of several choices.
    """
    if getattr(task, "components", ()):
        raise MethodError(
            f"{task.name} has the actions {task.action_space}, several choices at once; methods that learn from stored experience "
            "take one choice or a vector. Take ppo, or another that learns from what it samples."
        )
    shape = getattr(task, "observation_shape", (task.observation_size,))
    layout = getattr(task, "layout", None)
    axis, pieces = (None, ()) if layout is None else (layout.channel_axis, layout.pieces)
    return ActionSpace(shape, task.action_size, not task.continuous, axis, pieces)


def box_of(task: Any) -> ActionBox | None:
    """The box of a task's actions, where they are vectors."""
    return ActionBox.of(task.action_space) if task.continuous else None


def in_domains(method: Method, *domains: str) -> Method:
    """The method as it is on tasks of these kinds: with its knobs for them, and in control with a network, if it names none."""
    for domain in domains:
        method = method.for_domain(domain)
    return method.derive(policy=MLP()) if "control" in domains and method.policy is None else method
