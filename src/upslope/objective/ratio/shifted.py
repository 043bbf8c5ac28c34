"""A ratio to whoever sampled, beside where the step began."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from upslope.errors import MethodError
from upslope.objective.base import Branch, Ratio
from upslope.objective.ratio.granularity import LOG_LIMIT, log_ratio
from upslope.types import Batch


@dataclass(frozen=True)
class ShiftedRatio(Ratio):
    r"""Two branches (ReMix): :math:`r = \pi_\theta / \mu`, and its value as the step began, :math:`c = \pi_k / \mu`, fixed.

    :math:`\mu` is the policy that sampled the row, this step's or an older one. On fresh rows c is one.
    """

    def branches(self) -> tuple[str, ...]:
        return ("token", "centre")

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.logp", "behavior.logp"})

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        if batch.proximal is None:
            raise MethodError("ShiftedRatio needs the proximal log-probabilities; this batch has not been evaluated.")
        log = log_ratio(batch, "behavior")
        began = torch.where(batch.sampled > 0, batch.proximal.logp - batch.behavior.logp, 0.0).detach()
        began = torch.where(began.isnan(), 0.0, began).clamp(-LOG_LIMIT, LOG_LIMIT)
        return (Branch("token", log, log.exp()), Branch("centre", began, began.exp(), 0.0))
