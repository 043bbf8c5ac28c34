"""Rows as if drawn from a store, small networks, and updates of a method on them, without environment or run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from upslope.learners.actor_critic import UpdateNoise, learn_once
from upslope.learners.graphed_updates import Sums
from upslope.learners.network_optimizers import NetworkOptimizers
from upslope.objective import estimator
from upslope.policies.control.bound_networks import BoundNetworks, ExperienceInputs
from upslope.policies.control.network_policy import POLICY, NetworkPolicy, flat_modules
from upslope.runtime.settings import Settings
from upslope.types import ActionSpace, Ended, Method, Trajectories, View

SPACE = ActionSpace((5,), 3, False)
HIDDEN = (16, 16)
EPS = 1e-5
"""What Adam adds to its divisor: with less, a gradient of nearly zero moves weights as its rounding has it."""
FLAT = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")
SMALL = {"policy.hidden": HIDDEN, "models.q.network.hidden": HIDDEN}
"""Knobs that make networks small."""


def drawn_rows(seed: int, rows: int = 24, space: ActionSpace = SPACE) -> Trajectories:
    """Random decisions with what came of them; a fifth of the episodes end there."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    size = space.observation[0]
    reward, ended = normal(rows, 1), (torch.rand(rows, 1, generator=random) < 0.2)
    action = 0.9 * torch.tanh(normal(rows, 1, space.actions))
    if space.discrete:
        action = torch.randint(0, space.actions, (rows, 1), generator=random)
    zeros = torch.zeros(rows, 1)
    return Trajectories(
        sampled=torch.ones(rows, 1),
        reward=zeros[:, 0],
        group=torch.arange(rows),
        task=torch.zeros(rows, dtype=torch.long),
        behavior=View(zeros),
        action=action,
        step_reward=reward,
        ended=ended.to(torch.int8) * int(Ended.TERMINATED),
        signal={"discount": 0.99 * (~ended).float(), "return_to_go": zeros, "online": zeros},
        horizon=1,
        key=torch.arange(rows).unsqueeze(1),
        inputs=ExperienceInputs(normal(rows, 1, size), normal(rows, 1, size)),
    )


def pendulum_log(seed: int = 0, episodes: int = 4, steps: int = 25) -> dict[str, np.ndarray]:
    """A log of random pushes in ``gym:Pendulum-v1``, as flat columns."""
    env, found = gymnasium.make("Pendulum-v1"), defaultdict(list)
    env.action_space.seed(seed)
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        for step in range(steps):
            action = env.action_space.sample()
            following, reward, ended, _, _ = env.step(action)
            values = (observation, action, reward, ended, step == steps - 1, following)
            for name, value in zip(FLAT, values, strict=True):
                found[name].append(value)
            observation = following
    env.close()
    return {name: np.asarray(values) for name, values in found.items()}


class Small:
    """A method with small networks, and its updates on given rows.

    Args:
        like: Another whose weights it starts with, network by network, where it has them too.
    """

    def __init__(self, method: Method, *, lr: float = 1e-3, seed: int = 0, space: ActionSpace = SPACE, like: Small | None = None):
        self.method, self.space = method, space
        part: Any = method.policy
        self.policy = NetworkPolicy(space, part.actors(space, seed), None, part.lag, part.lag_every)
        self.policy.chosen_by = getattr(part, "by", "")
        for name, model in (*method.learned, *method.solved):
            self.policy.add_model(name, model, seed)
        if like is not None:
            self.take(like.policy.weights())
        settings = Settings(lr=lr, schedule="constant", grad_clip=0.0, adam_eps=EPS, steps=1)
        self.optimizers = NetworkOptimizers(method, self.policy, settings)
        self.optimizers.set_learning_rate(1)
        self.metrics: dict[str, float] = {}

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """The weights of those names."""
        for name, own in self.policy.weights().items():
            if name in weights:
                own.copy_(weights[name])

    def noise(self, update: int) -> UpdateNoise:
        return UpdateNoise(7, 1, update)

    def nets(self, rows: Trajectories, update: int = 1, scope: str = "") -> BoundNetworks:
        return BoundNetworks(self.policy, rows.inputs, self.noise(update), scope=scope)

    def update(self, rows: Trajectories, update: int = 1, nets: BoundNetworks | None = None) -> None:
        """One update, the first of which has the number 1."""
        sums = Sums()
        learn_once(self.method, rows, nets or self.nets(rows, update), self.optimizers, update, sums)
        self.policy.follow(update)
        self.metrics = sums.means()

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in self.policy.weights().items()}

    def policy_gradient(self, rows: Trajectories, update: int = 1) -> tuple[Tensor, Tensor]:
        """Loss and gradient of the policy, its weights in one vector; nothing moves."""
        nets, modules = self.nets(rows, update, POLICY), flat_modules(self.policy.actor)
        for module in modules:
            module.zero_gradient()
        batch = estimator.annotate(self.method, estimator.clean(rows).replace(nets=nets))
        losses, _ = estimator.decision_losses(self.method, estimator.begin_update(self.method, batch))
        losses.sum().backward()
        found = [module.flat.grad.clone() for module in modules if module.flat.grad is not None]
        return losses.sum().detach(), torch.cat(found)

    def model_gradient(self, name: str, rows: Trajectories, update: int = 1) -> tuple[Tensor, Tensor]:
        """Mean loss of a model and its gradient; nothing moves."""
        modules = flat_modules(self.policy.networks[name])
        for module in modules:
            module.zero_gradient()
        batch = rows.replace(nets=self.nets(rows, update, name))
        losses, _ = dict(self.method.learned)[name].loss(batch)
        losses.mean().backward()
        found = [module.flat.grad.clone() for module in modules if module.flat.grad is not None]
        return losses.mean().detach(), torch.cat(found)


def assert_same_weights(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], atol: float | None = None) -> None:
    """To the last bit, or as near as ``atol``."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        if atol is None:
            assert torch.equal(ours[name], theirs[name]), f"{name} differs by up to {(ours[name] - theirs[name]).abs().max():.3g}"
        else:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
