r"""Targets of critics: what the reward and the value behind a row add up to.

.. math::  y = R + \gamma^n (1 - d)\, V(s')

``R`` is the row's reward (of n steps, discounted), d says that the episode ended of itself; `Batch.signal` has ``discount``, the
factor before V. The parts differ in V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Networks
from upslope.objective.critics.members import Members
from upslope.types import Batch, Part


def networks(batch: Batch) -> Networks:
    """The batch's networks."""
    if batch.nets is None:
        raise MethodError("a part looks at networks, and this batch has none: it was not drawn from stored experience.")
    return batch.nets


def weight_of_entropy(nets: Networks, temperature: float | str) -> Tensor | float:
    """A temperature given as a number, or what the model of that name has learned, ``[N, T]``."""
    return nets.value(temperature, "now")[0, ..., 0].detach() if isinstance(temperature, str) else temperature


class BootstrapTarget(Part):
    """The value V(s') behind a row; the critic adds reward and discount."""

    def __call__(self, batch: Batch, over: Members) -> Tensor:
        """``[N, T]``, without gradient."""
        raise NotImplementedError


@dataclass(frozen=True)
class SoftValue(BootstrapTarget):
    r"""What the policy would do next, and how surprising it is (SAC).

    .. math::  V(s') = \min_i \bar Q_i(s', a') - \alpha \log \pi(a' | s'), \quad a' \sim \pi

    Over choices the expectation is exact.

    Fields:
        temperature: weight of the entropy: a number, or the name of the model that learns it.
        entropy: whether the entropy counts here; off, the policy alone is paid for it.
    """

    temperature: float | str = "temperature"
    entropy: bool = True

    def __call__(self, batch: Batch, over: Members) -> Tensor:
        nets = networks(batch)
        bonus = weight_of_entropy(nets, self.temperature) if self.entropy else 0.0
        if nets.discrete:
            logp = nets.log_probabilities("next")
            values = over(nets.value(nets.scope, "next", lagged=True), nets)
            return (logp.exp() * (values - _wide(bonus) * logp)).sum(-1)
        drawn = nets.actions("next")
        values = over(nets.value(nets.scope, "next", drawn.action, lagged=True), nets)
        return (values - _wide(bonus) * drawn.logp).squeeze(-1)


@dataclass(frozen=True)
class SmoothedAction(BootstrapTarget):
    r"""The slowly following policy's action, blurred (TD3).

    .. math::  V(s') = \min_i \bar Q_i(s', \operatorname{clip}(\bar\mu(s') + \operatorname{clip}(\epsilon, -c, c), -1, 1))

    Fields:
        noise: spread of the blur, in units of half the action's range. 0 trusts single actions.
        clip: most that is added.
    """

    ranges: ClassVar = {"noise": "[0, inf)", "clip": "[0, inf)"}

    noise: float = 0.2
    clip: float = 0.5

    def action(self, nets: Networks) -> Tensor:
        """The blurred action ``[N, T, 1, A]``."""
        action = nets.actions("next", whose="lagged").action
        blur = (self.noise * nets.normal(action, "smoothing")).clamp(-self.clip, self.clip)
        return (action + blur).clamp(-1, 1)

    def __call__(self, batch: Batch, over: Members) -> Tensor:
        nets = networks(batch)
        return over(nets.value(nets.scope, "next", self.action(nets), lagged=True), nets).squeeze(-1)


@dataclass(frozen=True)
class BestChoice(BootstrapTarget):
    r"""The best of all choices (DQN).

    .. math::  V(s') = \max_a \bar Q(s', a) \quad\text{or, double,}\quad \bar Q(s', \arg\max_a Q(s', a))

    Fields:
        double: the critic that learns chooses and its slowly following copy values: less is overestimated.
    """

    double: bool = False

    def __call__(self, batch: Batch, over: Members) -> Tensor:
        nets = networks(batch)
        values = over(nets.value(nets.scope, "next", lagged=True), nets)
        if not self.double:
            return values.amax(-1)
        chosen = over(nets.value(nets.scope, "next").detach(), nets).argmax(-1, keepdim=True)
        return values.gather(-1, chosen).squeeze(-1)


@dataclass(frozen=True)
class StateValue(BootstrapTarget):
    """What a value function of states says; no action is asked for that is not in the data (IQL).

    Fields:
        model: its name.
    """

    model: str = "value"

    def __call__(self, batch: Batch, over: Members) -> Tensor:
        return networks(batch).value(self.model, "next")[0, ..., 0].detach()


def _wide(number: Tensor | float) -> Tensor | float:
    """A number per decision beside a column with one more axis."""
    return number.unsqueeze(-1) if isinstance(number, Tensor) else number
