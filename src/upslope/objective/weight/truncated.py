"""Correcting for who really sampled (AsyncFlow)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.objective.ratio.granularity import LOG_LIMIT
from upslope.types import Batch


@dataclass(frozen=True)
class Truncated(Weight):
    r"""Importance of what others sampled: :math:`w_t = \min(C,\ \pi_{old}/\mu)`, where :math:`\mu` drew the decision.

    With it a ratio to the policy before the step, :math:`\pi_\theta/\pi_{old}`, is right in expectation for rows of any age, up to
    the cut, and for rows sampled in another precision. A decision that the policy of now drew counts exactly once, whatever
    rounding says of its ratio, and so does one that nobody sampled.

    Fields:
        cap: C, the most a decision may count. Larger has less bias and more variance; 1 only takes weight away.
    """

    ranges: ClassVar = {"cap": "(0, inf]"}

    cap: float = 2.0

    def needs(self) -> frozenset[str]:
        # Not the proximal ones: in a step's only update they are the current ones, which saves a pass.
        return frozenset({"behavior.logp"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None:
            raise MethodError("Truncated needs the proximal log-probabilities; this batch has not been evaluated.")
        log = (batch.proximal.logp - batch.behavior.logp).detach()
        weight = torch.where(log.isnan(), 0.0, log).clamp(-LOG_LIMIT, LOG_LIMIT).exp().clamp_max(self.cap)
        return torch.where(batch.drawn_by_others(), weight, 1.0)
