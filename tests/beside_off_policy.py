"""Updates of off-policy methods, ours beside those of other libraries: the same weights, rows and noise on both sides.

All of it is in double precision. Adam's first steps are nearly the sign of a gradient, so where a gradient all but vanishes single
precision may step to either side; what is compared here is the formula.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from upslope.learners.actor_critic import learn_once
from upslope.learners.graphed_updates import Sums
from upslope.learners.network_optimizers import NetworkOptimizers
from upslope.objective.networks.layers import MLPStack
from upslope.policies.control.bound_networks import BoundNetworks, ExperienceInputs
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.runtime.settings import Settings
from upslope.tasks.spaces import observation_layout
from upslope.types import Method, Source, Trajectories, View

OBSERVATION, ACTIONS, ROWS = 5, 3, 32
HIDDEN = (16, 16)
NARROW = {"policy.hidden": HIDDEN, "models.q.network.hidden": HIDDEN}
"""Knobs that make networks small."""
Layer = nn.Linear | nn.LayerNorm | tuple[nn.Linear, ...]
"""A layer of theirs; several side by side are one of ours."""


def task(continuous: bool = True) -> Any:
    """What a policy is built for."""
    box = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
    space = box if continuous else gymnasium.spaces.Discrete(ACTIONS)
    return SimpleNamespace(
        name="given", observation_size=OBSERVATION, action_size=ACTIONS, continuous=continuous, action_space=space
    )  # fmt: skip


def our_policy(method: Method, continuous: bool = True, seed: int = 0, given: Any = None) -> NetworkPolicy:
    """The networks of a method, untrained, for vectors or for what a task shows."""
    policy: NetworkPolicy = method.policy.build(given or task(continuous), seed)
    for name, model in method.learned:
        policy.add_model(name, model, seed)
    return policy.double()


def image_task(shape: tuple[int, ...] = (4, 36, 36)) -> Any:
    """One that shows images, and whose actions are choices."""
    layout = observation_layout("images", gymnasium.spaces.Box(0, 255, shape, np.uint8))
    return SimpleNamespace(**vars(task(continuous=False)), observation_shape=shape, layout=layout)


def random_images(rows: Trajectories, seed: int, shape: tuple[int, ...] = (4, 36, 36)) -> Trajectories:
    """The rows with images in place of vectors."""
    random = torch.Generator().manual_seed(seed)
    seen = [torch.randint(256, (rows.rows, 1, *shape), generator=random, dtype=torch.uint8) for _ in range(2)]
    return rows.replace(inputs=ExperienceInputs(*seen))


def random_rows(seed: int, continuous: bool = True, rows: int = ROWS, demonstrated: int = 0) -> Trajectories:
    """Rows as a rollout draws them; the last ``demonstrated`` come from a dataset. Some end their episodes."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    terminated = torch.rand(rows, 1, generator=random) < 0.25
    action = (0.9 * normal(rows, 1, ACTIONS)).tanh() if continuous else torch.randint(0, ACTIONS, (rows, 1), generator=random)
    ones = torch.ones(rows, 1, dtype=torch.float64)
    source = torch.full((rows,), int(Source.REPLAYED))
    source[rows - demonstrated :] = int(Source.DEMONSTRATED)
    return Trajectories(
        sampled=ones,
        reward=ones[:, 0] * 0,
        group=torch.arange(rows),
        task=torch.zeros(rows, dtype=torch.int64),
        behavior=View(ones * 0),
        action=action,
        step_reward=normal(rows, 1),
        ended=terminated.to(torch.int8),
        signal={"discount": 0.99 * (~terminated).double(), "return_to_go": normal(rows, 1)},
        label={"source": source},
        key=torch.arange(rows).unsqueeze(1),
        horizon=1,
        inputs=ExperienceInputs(normal(rows, 1, OBSERVATION), normal(rows, 1, OBSERVATION)),
    )


def random_noise(seed: int) -> Any:
    """Numbers by counter, as a learner gives them, in double precision."""

    def noise(kind: str, name: str, shape: tuple[int, ...]) -> Tensor:
        random = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(f"{kind}/{name}".encode()))
        make = torch.randn if kind == "normal" else torch.rand
        return make(shape, generator=random, dtype=torch.float64)

    return noise


class GivenNoise:
    """Exactly these numbers, under the names by which our parts ask for them."""

    def __init__(self, numbers: Mapping[str, Tensor]):
        self.numbers, self.asked = dict(numbers), set[str]()

    def __call__(self, kind: str, name: str, shape: tuple[int, ...]) -> Tensor:
        self.asked.add(name)
        assert self.numbers[name].shape == shape, f"{name} is of shape {shape}"
        return self.numbers[name]


class OurUpdates:
    """The learner's updates on given rows, one after the other."""

    def __init__(self, method: Method, policy: NetworkPolicy, **settings: Any):
        self.method, self.policy, self.done = method, policy, 0
        self.optimizers = NetworkOptimizers(method, policy, Settings(schedule="constant", warmup=0, **settings))
        self.optimizers.set_learning_rate(1)

    def __call__(self, rows: Trajectories, noise: Any, references: Mapping[str, NetworkPolicy] | None = None) -> dict[str, float]:
        """One more; its losses and notes."""
        self.done += 1
        sums = Sums()
        nets = BoundNetworks(self.policy, rows.inputs, noise, references)
        learn_once(self.method, rows, nets, self.optimizers, self.done, sums)
        self.policy.follow(self.done)
        return sums.means()


def linears(module: nn.Module) -> list[Layer]:
    """The layers of one of their networks that have weights, in order."""
    return [each for each in module.modules() if isinstance(each, nn.Linear | nn.LayerNorm)]


def pieces(members: Sequence[Sequence[Layer]]) -> dict[str, Tensor]:
    """Layers of theirs, member by member, under our names and in our shapes."""
    found: dict[str, Tensor] = {}
    number = -1
    for column in zip(*members, strict=True):
        if isinstance(column[0], nn.LayerNorm):
            layers = [(layer,) for layer in column]
            names = ("scale", "shift")
        else:
            layers = [layer if isinstance(layer, tuple) else (layer,) for layer in column]
            number, names = number + 1, ("weight", "bias")
        weight = [torch.cat([each.weight for each in layer]) for layer in layers]
        weight = [each.T if each.dim() == 2 else each.unsqueeze(0) for each in weight]
        bias = [torch.cat([each.bias for each in layer]).unsqueeze(0) for layer in layers]
        found |= {f"{number}.{names[0]}": torch.stack(weight).detach(), f"{number}.{names[1]}": torch.stack(bias).detach()}
    return found


def take_weights(stack: MLPStack, *members: Sequence[Layer]) -> None:
    """Our networks begin where theirs stand."""
    theirs = pieces(members)
    assert theirs.keys() == stack.frozen.keys()
    for name, weight in theirs.items():
        stack.frozen[name].copy_(weight)


def assert_same_weights(stack: MLPStack, *members: Sequence[Layer], tolerance: float = 1e-9) -> None:
    """Our networks ended where theirs did."""
    for name, weight in pieces(members).items():
        torch.testing.assert_close(
            stack.frozen[name], weight, rtol=0, atol=tolerance, msg=lambda told, name=name: f"{name}: {told}"
        )


def layers_of_stack(stack: MLPStack, member: int = 0) -> nn.Sequential:
    """One of our networks as torch's own modules, with its weights."""
    found: list[nn.Module] = []
    for number in range(len(stack.widths) - 1):
        weight, bias = (stack.frozen[f"{number}.{name}"][member] for name in ("weight", "bias"))
        layer = nn.Linear(*weight.shape, dtype=weight.dtype)
        layer.load_state_dict({"weight": weight.T, "bias": bias[0]})
        found += [layer, nn.ReLU()]
    return nn.Sequential(*found[:-1])


def assert_bitwise_equal(ours: NetworkPolicy, other: NetworkPolicy) -> None:
    """All networks of two policies are the same to the last bit; those that one of them has besides are left out."""
    left, right = ours.weights(), other.weights()
    shared = left.keys() & right.keys()
    assert shared
    for name in shared:
        assert torch.equal(left[name], right[name]), name


def queue_normals(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[Tensor]) -> None:
    """What torch's normal distributions draw, in this order."""
    place = count()

    def drawn(shape: Any, dtype: Any, device: Any) -> Tensor:
        found = numbers[next(place)]
        assert tuple(found.shape) == tuple(shape)
        return found

    monkeypatch.setattr("torch.distributions.normal._standard_normal", drawn)


# -- Stable-Baselines3 -------------------------------------------------------------------------------------------------


class GivenRows:
    """A replay buffer of theirs that gives our rows, batch after batch."""

    def __init__(self, batches: Sequence[Trajectories]):
        self.batches = iter(batches)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        from stable_baselines3.common.type_aliases import ReplayBufferSamples

        rows = next(self.batches)
        action = rows.action.squeeze(1) if rows.action.dim() == 3 else rows.action
        return ReplayBufferSamples(
            observations=rows.inputs.observation.squeeze(1),
            actions=action,
            next_observations=rows.inputs.following.squeeze(1),
            dones=(rows.ended == 1).double(),
            rewards=rows.step_reward,
            discounts=torch.full_like(rows.step_reward, 0.99),
        )


class GivenEnv(gymnasium.Env):
    """Spaces, and nothing that happens."""

    def __init__(self, continuous: bool):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.action_space = task(continuous).action_space


def their_agent(
    kind: type, batches: Sequence[Trajectories], monkeypatch: pytest.MonkeyPatch, continuous: bool = True, **given: Any
) -> Any:
    """An agent of Stable-Baselines3 in double precision that learns from these rows."""
    from stable_baselines3.common.logger import configure

    agent = kind("MlpPolicy", GivenEnv(continuous), policy_kwargs={"net_arch": list(HIDDEN)}, seed=0, device="cpu", **given)
    agent.policy.double()
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *rest, **more: obs)  # it makes them single
    agent.set_logger(configure(None, []))
    agent.replay_buffer = GivenRows(batches)
    return agent


# -- torchrl -----------------------------------------------------------------------------------------------------------


def their_rows(rows: Trajectories) -> Any:
    """Our rows as a tensordict."""
    from tensordict import TensorDict

    done = rows.ended == 1
    following = {"observation": rows.inputs.following.squeeze(1), "reward": rows.step_reward, "done": done, "terminated": done}
    now = {"observation": rows.inputs.observation.squeeze(1), "action": rows.action.squeeze(1)}
    return TensorDict(now | {"next": following}, [rows.rows])


def mlp(inputs: int, outputs: int, seed: int) -> nn.Sequential:
    """A network of the shape of our small ones."""
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs, HIDDEN[0]), nn.ReLU(), nn.Linear(HIDDEN[0], HIDDEN[1]), nn.ReLU(), nn.Linear(HIDDEN[1], outputs)]
    return nn.Sequential(*layers).double()


def parameters_in_order(parameters: Any) -> list[nn.Parameter]:
    """What a loss of theirs learns of a network."""
    return list(parameters.flatten_keys(".").values())


def layers_of(parameters: Any, member: int | None = None) -> list[Layer]:
    """The layers that a loss of theirs holds as stacked parameters, of one member of an ensemble."""
    flat = {name: value if member is None else value[member] for name, value in parameters.flatten_keys(".").items()}
    found: list[Layer] = []
    for name in sorted(name.removesuffix("weight") for name in flat if name.endswith("weight")):
        shape = flat[f"{name}weight"].shape
        layer = nn.Linear(*reversed(shape)).double() if len(shape) == 2 else nn.LayerNorm(shape).double()
        layer.load_state_dict({"weight": flat[f"{name}weight"].detach(), "bias": flat[f"{name}bias"].detach()})
        found.append(layer)
    return found


# -- d3rlpy ------------------------------------------------------------------------------------------------------------


def their_learner(config: Any) -> Any:
    """What learns in an algorithm of d3rlpy, in double precision."""
    algorithm = config.create(device="cpu:0")
    algorithm.create_impl((OBSERVATION,), ACTIONS)
    for module in vars(algorithm.impl._modules).values():
        if isinstance(module, nn.Module):
            module.double()
    return algorithm.impl


def their_minibatch(rows: Trajectories) -> Any:
    """Our rows as d3rlpy has them."""
    from d3rlpy.torch_utility import TorchMiniBatch

    action = rows.action.squeeze(1)
    return TorchMiniBatch(
        observations=rows.inputs.observation.squeeze(1),
        actions=action,
        rewards=rows.step_reward,
        next_observations=rows.inputs.following.squeeze(1),
        next_actions=action,
        returns_to_go=rows.signal["return_to_go"],
        terminals=(rows.ended == 1).double(),
        intervals=torch.ones_like(rows.step_reward),
        device="cpu:0",
    )
