"""Right and wrong answers apart, the right ones by how undecided the policy was (SRFT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.baseline import GroupBaseline
from upslope.objective.base import Advantage
from upslope.types import Batch, Source


@dataclass(frozen=True)
class EntropySigned(Advantage):
    r"""A sample is worth the same as any other of its kind, a right one more where the policy was undecided (SRFT).

    .. math::  A_i = right \cdot e^{\bar H_i} \text{ if } R_i \ge threshold \text{ else } wrong

    with :math:`\bar H_i` the mean entropy over the answer at the step's beginning. Demonstrations get the advantage of another
    part, over samples and demonstrations.

    Fields:
        right: what a right answer is worth to a policy without doubt.
        wrong: what a wrong one is worth.
        threshold: a reward from here on counts as right.
        demonstrated: advantage of the demonstrations.
    """

    judges_by: ClassVar[str] = "threshold"
    ranges: ClassVar = {"right": "(-inf, inf)", "wrong": "(-inf, inf)", "threshold": "(-inf, inf)"}

    right: float = 0.1
    wrong: float = -1.0
    threshold: float = 1.0
    demonstrated: Advantage = field(default_factory=lambda: GroupBaseline(scale="none"))

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.entropy is None:
            raise MethodError("EntropySigned needs the entropy at the step's beginning, and this batch has none.")
        right = self.right * batch.row_mean(batch.proximal.entropy).exp()
        own = batch.per_decision(torch.where(batch.reward >= self.threshold, right, self.wrong))
        source = batch.label.get("source")
        if source is None:
            return own
        return torch.where((source == Source.DEMONSTRATED).unsqueeze(1), self.demonstrated(batch), own)
