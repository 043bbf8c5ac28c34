"""Value functions of states, learned from stored experience."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.members import Members, SmallestMember
from upslope.objective.critics.targets import networks
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
