"""Right and wrong answers reinforced apart (PSR, NSR, W-REINFORCE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class SignedReward(Advantage):
    r"""One value for right answers, another for wrong ones: no baseline, no spread.

    .. math::  A_i = right \text{ if } R_i \ge threshold \text{ else } wrong

    Fields:
        right: what a right answer is worth. 0 leaves right answers alone (NSR); larger sharpens the policy on what it already
            gets right, at the cost of diversity.
        wrong: what a wrong answer is worth. 0 leaves wrong answers alone (PSR); further below zero moves probability from what
            was wrong to everything else, in proportion to what the policy believes.
        threshold: a reward from here on counts as right.
    """

    judges_by: ClassVar[str] = "threshold"

    right: float = 0.1
    wrong: float = -1.0
    threshold: float = 0.5

    def __call__(self, batch: Batch) -> Tensor:
        right, wrong = (torch.full_like(batch.reward, value) for value in (self.right, self.wrong))
        return batch.per_decision(torch.where(batch.reward >= self.threshold, right, wrong))
