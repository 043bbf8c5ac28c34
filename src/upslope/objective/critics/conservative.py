"""Conservative critics: actions that are not in the data are valued less."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.q_function import Penalty
from upslope.objective.critics.targets import networks
from upslope.objective.networks import Scalar
from upslope.types import Batch

LARGEST = 1e6
"""A learned multiplier goes no higher."""


@dataclass(frozen=True)
class Conservative(Penalty):
    r"""How much more the critic believes in any action than in the one of the data (CQL).

    .. math::  c\,m \sum_i \Big(\tau \log \sum_j e^{(Q_i(s, a_j) - \log \mu(a_j)) / \tau} - Q_i(s, a)\Big)

    The :math:`a_j` are drawn from the policy at the state, from the policy at the next one, and uniformly; :math:`\mu` is who drew
    them. Over choices the sum goes over all of them, and nothing is drawn.

    Fields:
        weight: c. More keeps values lower, and the policy nearer to the data.
        samples: actions drawn of each of the three kinds.
        temperature: :math:`\tau`. Near 0 only the largest value counts, far above 1 all do alike.
        importance: subtract :math:`\log \mu`, so that the sum estimates an integral over all actions.
        calibrated: a value of the policy's actions below the return that was seen from the state counts as that return: it is not
            pressed down further (Cal-QL). Of rows whose return nobody knows nothing changes.
        multiplier: m: a number, or the name of the model that learns it (`PenaltyMultiplier`).
    """

    ranges: ClassVar = {"weight": "[0, inf)", "samples": "[1, 1000]", "temperature": "(0, inf)"}

    weight: float = 5.0
    samples: int = 10
    temperature: float = 1.0
    importance: bool = True
    calibrated: bool = False
    multiplier: float | str = 1.0

    def needs(self) -> frozenset[str]:
        return frozenset({"signal.return_to_go"}) if self.calibrated else frozenset()

    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        nets = networks(batch)
        gap = self.gap(batch, nets.scope).sum(0)
        if isinstance(self.multiplier, str):
            gap = nets.value(self.multiplier, "now")[0, ..., 0].detach().clamp_max(LARGEST) * gap
        else:
            gap = self.multiplier * gap
        return self.weight * gap

    def gap(self, batch: Batch, critic: str) -> Tensor:
        """What is pressed down, without its weights, ``[E, N, T]``."""
        nets = networks(batch)
        if batch.action is None:
            raise MethodError("values are compared with those of recorded actions, and these rows have none.")
        if nets.discrete:
            judged = nets.value(critic, "now")
            recorded = judged.gather(-1, batch.action.unsqueeze(-1).expand(len(judged), -1, -1, -1)).squeeze(-1)
            judged, mask = self._at_least_the_return(judged, batch), nets.action_mask("now")
            judged = judged if mask is None else judged.masked_fill(~mask, -torch.inf)  # a return raises no forbidden choice
        else:
            judged, recorded = self._drawn(batch, critic)
        return self.temperature * (judged / self.temperature).logsumexp(-1) - recorded

    def _drawn(self, batch: Batch, critic: str) -> tuple[Tensor, Tensor]:
        """Values of drawn actions ``[E, N, T, J]`` and of the recorded one.

        All are asked for at once: their gradients nearly cancel, and do so in each row, before rows are added up and rounded.
        """
        nets = networks(batch)
        assert batch.action is not None
        drawn = [nets.actions("now", draws=self.samples), nets.actions("next", draws=self.samples)]
        anywhere = nets.actions("now", whose="uniform", draws=self.samples)
        action, logp = (torch.cat(columns, 2) for columns in zip(*drawn, anywhere, strict=True))
        values = nets.value(critic, "now", torch.cat([action, batch.action.unsqueeze(2)], 2))
        own, others, recorded = values.split([2 * self.samples, self.samples, 1], -1)
        judged = torch.cat([self._at_least_the_return(own, batch), others], -1)
        return judged - logp if self.importance else judged, recorded.squeeze(-1)

    def _at_least_the_return(self, values: Tensor, batch: Batch) -> Tensor:
        if not self.calibrated:
            return values
        if "return_to_go" not in batch.signal:
            raise MethodError("calibrated values are compared with the returns of the data, and these rows have none.")
        return values.maximum(batch.signal["return_to_go"].unsqueeze(-1))


@dataclass(frozen=True)
class PenaltyMultiplier(Learned):
    r"""The multiplier of a `Conservative` penalty: it rises while the gap is above what is wanted, falls while it is below.

    .. math::  L = -m\,c\,(\operatorname{mean}_i \text{gap}_i - g)

    Give the penalty its name: ``--set models.m=PenaltyMultiplier --set models.q.penalty.multiplier=m``.

    Fields:
        wanted: g, the gap that is allowed.
        start: where it begins.
        critic: the model whose penalty it multiplies.
        penalty: how the gap is measured: as that model's penalty does it.
    """

    ranges: ClassVar = {"start": "(0, inf)"}

    order: int = -2
    wanted: float = 10.0
    start: float = 1.0
    critic: str = "q"
    penalty: Conservative = field(default_factory=Conservative)

    def model_network(self) -> ModelNetwork:
        return Scalar(self.start)

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        gap = self.penalty.gap(batch, self.critic).mean(0).detach()
        multiplier = nets.value(nets.scope, "now")[0, ..., 0].clamp_max(LARGEST)
        return -multiplier * self.penalty.weight * (gap - self.wanted), {"multiplier": multiplier.detach(), "gap": gap}
