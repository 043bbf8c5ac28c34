"""Policy improvement against a critic: what an actor of stored experience descends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.critics.members import FirstMember, Members, SmallestMember
from upslope.objective.critics.targets import networks, weight_of_entropy
from upslope.types import Batch


class Improvement(Surrogate):
    """A loss of the policy on drawn rows; it compares no log-probabilities, so it takes no ratio."""

    silent_without_advantage = False

    def takes(self, branches: tuple[str, ...]) -> bool:
        return not branches


@dataclass(frozen=True)
class SoftImprovement(Improvement):
    r"""Actions of high value, drawn as randomly as the temperature pays for (SAC).

    .. math::  L = \alpha \log \pi(a | s) - \min_i Q_i(s, a), \quad a \sim \pi \text{ with its gradient}

    Over choices the expectation is exact.

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        temperature: weight of the entropy: a number, or the name of the model that learns it.
    """

    critic: str = "q"
    over: Members = field(default_factory=SmallestMember)
    temperature: float | str = "temperature"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        weight = weight_of_entropy(nets, self.temperature)
        if nets.discrete:
            logp = nets.log_probabilities("now")
            values = self.over(nets.value(self.critic, "now"), nets).detach()
            wide = weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight
            return (logp.exp() * (wide * logp - values)).sum(-1), {"entropy": -(logp.exp() * logp).sum(-1).detach()}
        drawn = nets.actions("now")
        values = self.over(nets.value(self.critic, "now", drawn.action, members=self.over.asked), nets).squeeze(-1)
        logp = drawn.logp.squeeze(-1)
        return weight * logp - values, {"entropy": -logp.detach()}


@dataclass(frozen=True)
class DeterministicImprovement(Improvement):
    r"""The action that the critic values most (DDPG, TD3).

    .. math::  L = -\lambda\, Q_1(s, \mu(s)), \qquad \lambda = \alpha / \operatorname{mean}|Q_1(s, \mu(s))|

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        scale: :math:`\alpha` of TD3+BC: how much improvement counts beside staying near the data, whatever the size of rewards.
            inf leaves :math:`\lambda = 1`.
    """

    ranges: ClassVar = {"scale": "[0, inf]"}

    critic: str = "q"
    over: Members = field(default_factory=FirstMember)
    scale: float = torch.inf

    def prepares(self) -> bool:
        return self.scale != torch.inf

    def prepare(self, batch: Batch) -> Tensor:
        """The factor, for each row: a mean over the decisions that count."""
        size = (self._values(batch).detach().abs() * batch.sampled).sum() / batch.sampled.sum().clamp_min(1)
        return (self.scale / size.clamp_min(1e-6)).expand(batch.rows)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        values = self._values(batch)
        if not self.prepares():
            return -values, {}
        return -batch.prepared[self].unsqueeze(1) * values, {}

    def _values(self, batch: Batch) -> Tensor:
        nets = networks(batch)
        return self.over(nets.value(self.critic, "now", nets.actions("now").action, members=self.over.asked), nets).squeeze(-1)


@dataclass(frozen=True)
class AdvantageWeighted(Improvement):
    r"""Imitates the recorded actions, the better ones more (AWR, AWAC, IQL).

    .. math::  L = -\min(e^{\beta A}, c) \log \pi(a | s)

    Fields:
        beta: how much better actions count more; 0 is plain imitation by likelihood.
        cap: c.
        normalised: divide the weights by their mean over the update, before the cap: the softmax over a batch that AWAC's
            released code can take (`normalize_over_batch`). How far the policy moves then does not depend on how good the data are.
    """

    ranges: ClassVar = {"beta": "[0, inf)", "cap": "(0, inf]"}

    beta: float = 3.0
    cap: float = 100.0
    normalised: bool = False

    def prepares(self) -> bool:
        return self.normalised

    def prepare(self, batch: Batch) -> Tensor:
        """The logarithm of the mean weight, for each row."""
        exponent = torch.where(batch.sampled > 0, self.beta * _advantage(batch), -torch.inf)
        mean = exponent.flatten().logsumexp(0) - batch.sampled.sum().clamp_min(1).log()
        return torch.where(torch.isfinite(mean), mean, 0.0).expand(batch.rows)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        if batch.action is None:
            raise MethodError("recorded actions are weighted by their advantage, and these rows have none.")
        exponent = self.beta * _advantage(batch)
        if self.normalised:
            exponent = exponent - batch.prepared[self].unsqueeze(1)
        weight = exponent.exp().clamp_max(self.cap).detach()
        logp = networks(batch).logp("now", batch.action.unsqueeze(2)).squeeze(-1)
        return -weight * logp, {"imitation_weight": weight, "logp_data": logp.detach()}


@dataclass(frozen=True)
class FamilyWeighted(Improvement):
    r"""Imitates the recorded actions with a policy for every coefficient: the better ones more, the larger it is (FamO2O).

    .. math::  L = -\min(e^{\beta A}, c) \log \pi(a | s, \beta)

    While only a dataset is learned from, each decision's coefficient is drawn uniformly; once the run acts, the balance draws it.

    Fields:
        cap: c.
        balance: the model that chooses coefficients.
    """

    ranges: ClassVar = {"cap": "(0, inf]"}

    cap: float = 100.0
    balance: str = "balance"

    def needs(self) -> frozenset[str]:
        return frozenset({"signal.online"})

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        if batch.action is None:
            raise MethodError("recorded actions are weighted by their advantage, and these rows have none.")
        nets = networks(batch)
        chosen = nets.column(self.balance, "draw", noise=nets.normal(batch.sampled, "family"))[..., 0]
        anywhere = nets.column(self.balance, "anywhere", share=nets.uniform(batch.sampled, "family"))
        coefficient = torch.where(batch.signal["online"] > 0, chosen, anywhere).detach()
        weight = (coefficient * _advantage(batch)).exp().clamp_max(self.cap).detach()
        logp = nets.logp("now", batch.action.unsqueeze(2), given={self.balance: coefficient}).squeeze(-1)
        return -weight * logp, {"imitation_weight": weight, "logp_data": logp.detach(), "coefficient": coefficient}


def _advantage(batch: Batch) -> Tensor:
    if batch.advantage is None:
        raise MethodError("recorded actions are weighted by their advantage, and these rows have none.")
    return batch.advantage


@dataclass(frozen=True)
class Imitation(Improvement):
    r"""Imitates the recorded actions.

    .. math::  L = \tfrac1D \lVert \mu(s) - a \rVert^2 \quad\text{or}\quad -\log \pi(a | s)

    Fields:
        likelihood: by log-likelihood, in place of the squared distance. Choices are always imitated by it.
    """

    likelihood: bool = False

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        loss = distance_to(batch, batch.action) if not (self.likelihood or networks(batch).discrete) else -_logp(batch)
        return loss, {"imitation": loss.detach()}


def _logp(batch: Batch) -> Tensor:
    assert batch.action is not None
    return networks(batch).logp("now", batch.action.unsqueeze(2)).squeeze(-1)


def distance_to(batch: Batch, action: Tensor | None) -> Tensor:
    """Squared distance ``[N, T]`` of the policy's action to another, a mean over its dimensions."""
    if action is None:
        raise MethodError("recorded actions are to be imitated, and these rows have none.")
    return (networks(batch).actions("now").action.squeeze(2) - action).square().mean(-1)
