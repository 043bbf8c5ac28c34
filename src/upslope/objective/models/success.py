"""When a task is done, learned from demonstrations that say so."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.targets import networks
from upslope.objective.networks import MLPEnsemble
from upslope.types import Batch, Source

RECORDED = "recorded_reward"
"""Where rewards stand that a learned one has taken the place of."""


@dataclass(frozen=True)
class SuccessClassifier(Learned):
    r"""Tells states in which the task is done from others (SERL's reward classifier, and VICE).

    .. math::  L = \tfrac12 \operatorname{mean}_{\text{done}} \operatorname{softplus}(-x(s'))
        + \tfrac12 \operatorname{mean}_{\text{not}} \operatorname{softplus}(x(s'))

    Done are the states that demonstrations reached with a reward; whichever of the two an update has less of counts as much.

    Fields:
        above: a recorded reward above this says that the task is done.
        adversarial: states that the run itself reaches count as not done, too (VICE), so that the policy cannot please a classifier
            that has not seen what it does. Otherwise the classifier learns from demonstrations alone.
        network: what it is made of.
    """

    order: int = -3
    above: float = 0.0
    adversarial: bool = False
    network: MLPEnsemble = field(default_factory=lambda: MLPEnsemble(members=1))

    def needs(self) -> frozenset[str]:
        return frozenset({"step_reward", "label.source"})

    def model_network(self) -> ModelNetwork:
        return self.network

    def prepare(self, batch: Batch) -> Tensor:
        """What each decision counts, so that both kinds count the same."""
        done, other = self._kinds(batch)
        counts = [kind.sum().clamp_min(1) for kind in (done, other)]
        return 0.5 * batch.sampled.sum() * (done / counts[0] + other / counts[1])

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        done, other = self._kinds(batch)
        logit = nets.value(nets.scope, "next")[0, ..., 0]
        loss = batch.prepared[self] * torch.nn.functional.softplus(torch.where(done > 0, -logit, logit))
        right = torch.where(done > 0, logit > 0, logit <= 0).to(logit.dtype)
        known = done + other
        return loss, {"accuracy": right.detach() * known + (1 - known)}

    def _kinds(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Ones ``[N, T]`` where the task is done, and where it is not; zeros in both where nobody knows."""
        if batch.step_reward is None:
            raise MethodError("demonstrations say by their rewards when a task is done, and these rows have none.")
        reward = batch.signal.get(RECORDED, batch.step_reward)
        shown = (batch.label["source"] == Source.DEMONSTRATED).to(reward.dtype).unsqueeze(1) * batch.sampled
        done = shown * (reward > self.above)
        return done, batch.sampled - done if self.adversarial else shown - done


__all__ = ["RECORDED", "SuccessClassifier"]
