"""Improvement that begins as imitation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes
from upslope.objective.critics.targets import networks
from upslope.objective.surrogate.improvement import SoftImprovement
from upslope.types import Batch


@dataclass(frozen=True)
class ClonedImprovement(SoftImprovement):
    r"""SAC's improvement, with the likelihood of the recorded action in place of some of the value (the warm-up of CQL).

    .. math::  L = \alpha \log \pi(a' | s) - (1 - w) \min_i Q_i(s, a') - w \log \pi(a | s), \quad a' \sim \pi

    Fields:
        imitation: w. 1 clones, paid for entropy; 0 is `SoftImprovement`. A controller may lower it:
            ``ThenWhole(after=0.1, knob="surrogate.imitation")`` clones for the first tenth of the run.
    """

    ranges: ClassVar = {"imitation": "[0, 1]"}

    imitation: float = 0.0

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        loss, notes = super().__call__(batch, branches)
        if not self.imitation:
            return loss, notes
        if batch.action is None:
            raise MethodError("recorded actions are to be imitated, and these rows have none.")
        nets = networks(batch)
        logp = nets.logp("now", batch.action.unsqueeze(2)).squeeze(-1)
        return loss + self.imitation * (self._value(batch) - logp), notes | {"logp_data": logp.detach()}

    def _value(self, batch: Batch) -> Tensor:
        """What the loss holds of the critic, with its gradient."""
        nets = networks(batch)
        if nets.discrete:
            values = self.over(nets.value(self.critic, "now"), nets).detach()
            return (nets.log_probabilities("now").exp() * values).sum(-1)
        return self.over(nets.value(self.critic, "now", nets.actions("now").action), nets).squeeze(-1)
