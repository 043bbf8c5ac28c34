"""Advantages that critics give to recorded actions."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.objective.critics.members import Members, SmallestMember
from upslope.objective.critics.targets import networks
from upslope.types import Batch


@dataclass(frozen=True)
class CriticAdvantage(Advantage):
    r"""How much better the recorded action is than the state, as its value function has it, or than what the policy would do.

    .. math::  A = \min_i Q_i(s, a) - V(s)

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        lagged: ask the critic's slowly following copy.
        value: the model that values states; empty takes :math:`V(s) = \min_i Q_i(s, a')` with the policy's own a'.
    """

    critic: str = "q"
    over: Members = field(default_factory=SmallestMember)
    lagged: bool = True
    value: str = "value"

    def __call__(self, batch: Batch) -> Tensor:
        nets = networks(batch)
        if batch.action is None:
            raise MethodError("recorded actions are compared with their state, and these rows have none.")
        judged = self.over(nets.value(self.critic, "now", batch.action.unsqueeze(2), lagged=self.lagged), nets)
        if self.value:
            usual = nets.value(self.value, "now")[0]
        else:
            own = nets.actions("now").action.detach()
            usual = self.over(nets.value(self.critic, "now", own, lagged=self.lagged), nets)
        return (judged - usual).squeeze(-1).detach()
