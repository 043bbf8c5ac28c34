"""Value functions of states, learned from stored experience."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.members import Members, SmallestMember
from upslope.objective.critics.targets import SmoothedAction, networks
from upslope.objective.networks import MLPEnsemble
from upslope.types import Batch


@dataclass(frozen=True)
class ExpectileValue(Learned):
    r"""How good a state is if one does as well as the better actions seen there (IQL).

    .. math::  L = |\tau - 1(u < 0)|\, u^2, \qquad u = \min_i \bar Q_i(s, a) - V(s)

    Fields:
        expectile: :math:`\tau`. A half gives the mean over the data's actions; nearer to one, the best of them.
        critic: the model that values actions.
        over: what its members say as one.
        network: what it is made of.
    """

    ranges: ClassVar = {"expectile": "(0, 1)"}

    expectile: float = 0.7
    critic: str = "q"
    over: Members = field(default_factory=SmallestMember)
    network: MLPEnsemble = field(default_factory=lambda: MLPEnsemble(members=1))

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        if batch.action is None:
            raise MethodError("a value of states is fitted to those of recorded actions, and these rows have none.")
        judged = self.over(nets.value(self.critic, "now", batch.action.unsqueeze(2), lagged=True), nets).squeeze(-1).detach()
        value = nets.value(nets.scope, "now")[0, ..., 0]
        gap = judged - value
        weight = (self.expectile - (gap.detach() < 0).to(gap.dtype)).abs()
        return weight * gap.square(), {"value": value.detach()}


@dataclass(frozen=True)
class CautiousValue(Learned):
    r"""What a state is worth under the policy, by whichever of a critic and its slowly following copy believes less (A2PR).

    .. math::  L = (V(s) - \min(y, \bar y))^2, \qquad y = R + \gamma^n (1 - d) \min_i Q_i(s', a'), \quad
        \bar y \text{ the same by } \bar Q_i

    It is fitted behind the policy: who compares values with it in an update sees it as it was before.

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        following: the action a' at the next state.
        network: what it is made of.
    """

    order: int = 1
    critic: str = "q"
    over: Members = field(default_factory=SmallestMember)
    following: SmoothedAction = field(default_factory=SmoothedAction)
    network: MLPEnsemble = field(default_factory=lambda: MLPEnsemble(members=1))

    def needs(self) -> frozenset[str]:
        return frozenset({"step_reward", "signal.discount"})

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        if batch.step_reward is None:
            raise MethodError("a value of states is fitted to rewards, and these rows have none.")
        with torch.no_grad():
            action = self.following.action(nets)
            said = [self.over(nets.value(self.critic, "next", action, lagged=lagged), nets).squeeze(-1) for lagged in (False, True)]
            target = batch.step_reward + batch.signal["discount"] * torch.minimum(*said)
        value = nets.value(nets.scope, "now")[0, ..., 0]
        return (value - target).square(), {"value": value.detach()}
