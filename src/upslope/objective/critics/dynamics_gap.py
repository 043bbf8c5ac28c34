"""Critics between a real and a simulated world: what to believe of transitions that only the simulator makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.critics.q_function import ErrorWeight, Penalty
from upslope.objective.critics.targets import networks
from upslope.objective.models.source import log_ratio, real_rows
from upslope.types import Batch


@dataclass(frozen=True)
class DynamicsRatio(ErrorWeight):
    r"""Simulated rows count as much as what came of them would be likely in the real world (H2O).

    .. math::  w = \operatorname{clip}\Big(\frac{P_{real}(s' | s, a)}{P_{sim}(s' | s, a)}, low, high\Big)

    Real rows count 1.

    Fields:
        model: the `SourceDiscriminator` that sees the next state.
        low, high: bounds of w; both at 1 make all rows count the same.
    """

    ranges: ClassVar = {"low": "[0, inf)", "high": "(0, inf]"}

    model: str = "step_source"
    low: float = 1e-5
    high: float = 1.0

    def needs(self) -> frozenset[str]:
        return frozenset({"label.source"})

    def __call__(self, batch: Batch) -> Tensor:
        ratio = log_ratio(batch, self.model).squeeze(-1).exp().clamp(self.low, self.high)
        return torch.where(real_rows(batch) > 0, 1.0, ratio)


@dataclass(frozen=True)
class DynamicsGap(Penalty):
    r"""Values of simulated rows are pressed down where the simulator is wrong, those of real rows are raised (H2O).

    .. math::  c \sum_i \Big(\log \sum_{sim} \omega\, e^{Q_i(s, a)} - \operatorname{mean}_{real} Q_i(s, a)\Big), \qquad
        \omega = u / \textstyle\sum_{sim} u

    .. math::  u(s, a) = \operatorname{clip}\Big(\operatorname{mean}_n \log \frac{P_{sim}}{P_{real}}(s'_n | s, a), least, most\Big),
        \quad s'_n = s' + \text{spread} \cdot \mathcal N(0, 1)

    An update without simulated rows pays nothing.

    Fields:
        weight: c.
        model: the `SourceDiscriminator` that sees the next state.
        draws: next states tried for each row, n.
        spread: of what is added to them, in units of the networks' inputs: 1 is the data's own where these are normalised.
        least, most: bounds of the gap u. One that is the same for all rows spreads the penalty evenly.
        limit: most that each critic's difference can be, either way; beyond it there is no gradient.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "draws": "[1, 1000]", "spread": "[0, inf)", "least": "(0, inf)", "most": "(0, inf)",
                        "limit": "(0, inf]"}  # fmt: skip

    weight: float = 0.01
    model: str = "step_source"
    draws: int = 10
    spread: float = 1.0
    least: float = 1e-30
    most: float = 10.0
    limit: float = 1000.0

    def needs(self) -> frozenset[str]:
        return frozenset({"label.source"})

    def prepare(self, batch: Batch) -> Tensor:
        """Of each decision and member ``[N, T, E, 2]``: what its value's gradient is multiplied by, and its part of the penalty.

        The gradient of a logarithm of summed exponentials is a softmax, so that decisions can be added up one by one.
        """
        nets = networks(batch)
        assert batch.action is not None
        with torch.no_grad():
            values = nets.value(nets.scope, "now", batch.action.unsqueeze(2)).squeeze(-1).detach()
            gap = (-log_ratio(batch, self.model, self.draws, self.spread)).mean(-1).clamp(self.least, self.most)
            real = real_rows(batch) * batch.sampled
            simulated = (1 - real_rows(batch)) * batch.sampled
            share = gap * simulated / (gap * simulated).sum().clamp_min(self.least)
            pressed = torch.where(simulated > 0, values + share.clamp_min(self.least).log(), -torch.inf)
            flat = pressed.flatten(1)
            some = (simulated.sum() > 0).to(values.dtype)
            total = torch.where(some > 0, flat, 0.0).logsumexp(1) * some  # where there is none, a sum of nothing is not asked for
            raised = real / real.sum().clamp_min(1)
            difference = (total - (values * raised).flatten(1).sum(1) * some).view(-1, 1, 1)
            inside = (difference.abs() < self.limit).to(values.dtype) * some
            softmax = torch.where(simulated > 0, (pressed - total.view(-1, 1, 1)).exp(), 0.0)
            factor = inside * (softmax - raised)
            amount = softmax * difference.clamp(-self.limit, self.limit)
        return torch.stack([factor, amount], -1).movedim(0, 2)

    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        factor, amount = batch.prepared[self].movedim(2, 0).unbind(-1)
        assert batch.share is not None
        paid = (factor * (values - values.detach()) + amount).sum(0)
        # The learner multiplies by each decision's share, and what is penalised is no mean.
        return self.weight * paid / torch.where(batch.share == 0, 1.0, batch.share)
