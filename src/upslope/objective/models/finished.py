"""A value function that learns only from what is over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.models.value import ValueFunction
from upslope.types import Batch, Ended


@dataclass(frozen=True)
class FinishedValue(ValueFunction):
    r"""The value loss over all decisions of the rows that ended, whichever step they were made in (T-PPO).

    .. math::  L = \frac{1}{\sum_{i\ \text{ended}} T_i} \sum_{i\ \text{ended}} \sum_t \ell_{it}

    with :math:`\ell` the loss of `ValueFunction`. A row whose last decision is ``PAUSED`` has no return yet and is left out.
    """

    aggregated = False

    def prepare(self, batch: Batch) -> Tensor:
        """Each row's share ``[N]``: one over the decisions of all ended rows of the update."""
        ended = torch.ones_like(batch.reward, dtype=torch.bool)
        if batch.ended is not None:
            ended = ~((batch.ended == Ended.PAUSED) & (batch.sampled > 0)).any(1)
        decisions = (batch.lengths() * ended).sum().clamp_min(1)
        return ended.to(batch.sampled) / decisions

    def __call__(self, batch: Batch) -> Tensor:
        share = batch.prepared[self].unsqueeze(1)
        # A paused row's returns are made up; nothing of them may enter, not even times zero.
        return torch.where(share > 0, super().__call__(batch) * share, 0.0)
