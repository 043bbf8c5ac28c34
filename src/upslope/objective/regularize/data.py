"""Staying near the data: regularisers of policies that learn from a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Networks, Regularizer
from upslope.objective.critics.members import FirstMember, Members
from upslope.objective.critics.targets import networks
from upslope.objective.models.action_vae import reconstructed
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


@dataclass(frozen=True)
class TowardsBetter(Regularizer):
    r"""Draws the policy to the better of the recorded action and one that is made up, where either is better than the state (A2PR).

    .. math::  w\, 1[Q_1(s, \hat a) \ge V(s) \text{ or } Q_1(s, a) > V(s)]\, \tfrac1D \lVert \mu(s) - \bar a \rVert^2, \qquad
        \bar a = \hat a \text{ where } Q_1(s, \hat a) \ge Q_1(s, a), \text{ else } a

    :math:`\hat a` is what the autoencoder of good actions makes of the policy's own.

    Fields:
        weight: w, the mask of the released code.
        made_by: the autoencoder; empty offers the recorded action alone.
        critic: the model that values actions.
        over: what its members say as one.
        value: the model that values states; empty draws to every action, however good.
        detach_guide: hold the made-up action still. Otherwise the policy also moves what the autoencoder is given, as in the
            released code.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1.0
    made_by: str = "vae"
    critic: str = "q"
    over: Members = field(default_factory=FirstMember)
    value: str = "value"
    detach_guide: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        nets, own = networks(batch), networks(batch).actions("now").action.squeeze(2)
        if batch.action is None:
            raise MethodError("the policy is drawn to recorded actions, and these rows have none.")
        guide, worth = batch.action, self._worth(nets, batch.action)
        counts = torch.ones_like(batch.sampled, dtype=torch.bool)
        if self.value:
            usual = nets.value(self.value, "now")[0, ..., 0].detach()
            counts = worth > usual
        if self.made_by:
            made, _, _ = reconstructed(nets, self.made_by, own.detach() if self.detach_guide else own, "guide")
            of_made = self._worth(nets, made.detach())
            guide = torch.where((of_made >= worth).unsqueeze(-1), made, guide)
            counts = counts | (of_made >= usual) if self.value else counts
        return self.weight * torch.where(counts, (own - guide).square().mean(-1), 0.0)

    def _worth(self, nets: Networks, action: Tensor) -> Tensor:
        """Values ``[N, T]`` of actions ``[N, T, A]``."""
        values = nets.value(self.critic, "now", action.unsqueeze(2), members=self.over.asked)
        return self.over(values, nets).squeeze(-1).detach()
