"""Staying near the data: regularisers of policies that learn from a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Regularizer
from upslope.objective.critics.targets import networks
from upslope.objective.surrogate.improvement import distance_to
from upslope.types import Batch


@dataclass(frozen=True)
class TowardsData(Regularizer):
    r"""Draws the policy to the action that was recorded at the same state (TD3+BC).

    .. math::  w \, \tfrac1D \lVert \mu(s) - a \rVert^2

    Fields:
        weight: w.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1.0

    def __call__(self, batch: Batch) -> Tensor:
        return self.weight * distance_to(batch, batch.action)


@dataclass(frozen=True)
class TowardsNearest(Regularizer):
    r"""Draws the policy to the action of the recorded pair that is nearest to what it does, at this state or one close by (PRDC).

    .. math::  w \, \tfrac1D \lVert \mu(s) - a_j \rVert^2, \qquad j = \arg\min_i \lVert (\beta s, \mu(s)) - (\beta s_i, a_i) \rVert

    Fields:
        weight: w.
        neighbours: the model that finds them, which has :math:`\beta`.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1.0
    neighbours: str = "neighbours"

    def __call__(self, batch: Batch) -> Tensor:
        nets = networks(batch)
        own = nets.actions("now").action.squeeze(2)
        return self.weight * (own - nets.column(self.neighbours, "nearest", action=own.detach())).square().mean(-1)
