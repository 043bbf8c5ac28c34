"""Which of a family of policies is asked at a state: how much it improves on the data, how much it imitates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.members import Members, SmallestMember
from upslope.objective.critics.targets import networks, weight_of_entropy
from upslope.objective.networks.balance import BoundedNumber
from upslope.objective.networks.scalar import Scalar
from upslope.types import Batch


@dataclass(frozen=True)
class Balance(Learned):
    r"""Chooses for each state the coefficient that a conditioned policy is asked with (FamO2O).

    .. math::  L = T \log \pi_b(\beta | s) - \min_i \bar Q_i(s, a), \quad \beta \sim \pi_b(\cdot | s),\ a \sim \pi(\cdot | s, \beta)

    Its gradient goes through the policy, which stands still. It is fitted behind the policy.

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        temperature: T: a number, or the name of the model that learns it.
        network: the coefficient's interval and its network. Where both ends are the same, all of the family is one policy.
    """

    order: int = 1
    critic: str = "q"
    over: Members = field(default_factory=SmallestMember)
    temperature: float | str = "balance_temperature"
    network: BoundedNumber = field(default_factory=BoundedNumber)

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)
        if self.network.low > self.network.high:
            raise MethodError(f"{path}.network has low={self.network.low:g} above high={self.network.high:g}. Exchange them.")

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        drawn = nets.column(nets.scope, "draw", noise=nets.normal(batch.sampled, "balance"))
        coefficient, logp = drawn.unbind(-1)
        action = nets.actions("now", given={nets.scope: coefficient}).action
        values = self.over(nets.value(self.critic, "now", action, lagged=True), nets).squeeze(-1)
        weight = weight_of_entropy(nets, self.temperature)
        return weight * logp - values, {"coefficient": coefficient.detach(), "surprise": logp.detach()}


@dataclass(frozen=True)
class BalanceTemperature(Learned):
    r"""How random the choice of coefficients is, learned (FamO2O).

    .. math::  L = -T (\log \pi_b(\beta | s) + \bar H)

    Fields:
        balance: the model that chooses.
        start: where it begins.
        target_entropy: what is wanted, of the coefficient in units of half its interval.
    """

    ranges: ClassVar = {"start": "(0, inf)"}

    order: int = 2
    balance: str = "balance"
    start: float = 1.0
    target_entropy: float = -0.5

    def model_network(self) -> ModelNetwork:
        return Scalar(self.start)

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        logp = nets.column(self.balance, "draw", noise=nets.normal(batch.sampled, "balance"))[..., 1].detach()
        temperature = nets.value(nets.scope, "now")[0, ..., 0]
        return -temperature * (logp + self.target_entropy), {"weight": temperature.detach()}
