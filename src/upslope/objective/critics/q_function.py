"""The critic: a value for a state and an action."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.members import Members, SmallestMember
from upslope.objective.critics.targets import BootstrapTarget, SoftValue, networks
from upslope.objective.networks import MLPEnsemble
from upslope.types import Batch, Part


class Penalty(Part):
    """What a critic pays besides its error, ``[N, T]``, summed over its members."""

    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        """``values`` are the members' of the recorded actions, ``[E, N, T]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """Nothing: the critic is fitted to its targets alone."""

    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        return torch.zeros_like(batch.sampled)


class ErrorWeight(Part):
    """How much the error of each row counts, ``[N, T]``, without gradient."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class EqualWeight(ErrorWeight):
    """Every row counts the same."""

    def __call__(self, batch: Batch) -> Tensor:
        return torch.ones_like(batch.sampled)


@dataclass(frozen=True)
class QFunction(Learned):
    r"""Values of actions, fitted to what came of them.

    .. math::  L = c\,w \sum_i (Q_i(s, a) - y)^2 + \text{penalty}, \qquad y = R + \gamma^n (1 - d) V(s')

    Fields:
        network: what it is made of; several members are fitted to one target.
        target: the value behind a row.
        over: what its members say as one, in the target.
        penalty: what it pays besides.
        error: of a member: squared, or Huber's, which grows linearly beyond 1.
        weight: c.
        importance: w, how much each row counts.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}
    takes_action: ClassVar[bool] = True

    lag: float = 0.005
    network: MLPEnsemble = field(default_factory=MLPEnsemble)
    target: BootstrapTarget = field(default_factory=SoftValue)
    over: Members = field(default_factory=SmallestMember)
    penalty: Penalty = field(default_factory=NoPenalty)
    error: Literal["squared", "huber"] = "squared"
    weight: float = 1.0
    importance: ErrorWeight = field(default_factory=EqualWeight)

    def needs(self) -> frozenset[str]:
        return frozenset({"step_reward", "signal.discount"})

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        if batch.step_reward is None or batch.action is None or "discount" not in batch.signal:
            raise MethodError("a critic learns from rewards, actions and discounts, and these rows have none.")
        with torch.no_grad():
            target = batch.step_reward + batch.signal["discount"] * self.target(batch, self.over)
        values = nets.value(nets.scope, "now", batch.action.unsqueeze(2)).squeeze(-1)
        errors = values - target
        each = errors.square() if self.error == "squared" else _huber(errors)
        error = each.sum(0)
        if not isinstance(self.importance, EqualWeight):
            error = self.importance(batch).detach() * error
        paid = self.penalty(batch, values)
        notes = {"value": values.detach().mean(0), "td_error": errors.detach().abs().mean(0), "target": target}
        if not isinstance(self.penalty, NoPenalty):
            notes["penalty"] = paid.detach()
        return self.weight * error + paid, notes


def _huber(errors: Tensor) -> Tensor:
    """Half the square up to one, then linear."""
    size = errors.abs()
    return torch.where(size < 1, 0.5 * errors.square(), size - 0.5)
