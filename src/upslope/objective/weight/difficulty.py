"""Harder problems count more (GUI-G1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class DifficultyWeight(Weight):
    r"""Each row times its problem's difficulty: :math:`w_i = \mathrm{clip}(d_i / \bar d,\ low,\ high)`, the mean over the update.

    The difficulty comes with the task, as a component of its scores. A task that says nothing about it is left alone.

    Fields:
        component: the name of that component.
        low, high: how much less an easy and more a hard problem may count. 1 and 1 is off.
    """

    scope = "update"

    component: str = "difficulty"
    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise MethodError(f"DifficultyWeight has low={self.low:g} and high={self.high:g}; weights vary around 1.")

    def __call__(self, batch: Batch) -> Tensor:
        given = batch.components.get(self.component)
        there = batch.lengths() > 0
        if given is None or not there.any():
            return torch.ones_like(batch.sampled)
        difficulty = given.to(batch.sampled.dtype)
        wrong = ~((difficulty >= 0) & difficulty.isfinite())
        if bool(wrong.any()):
            raise MethodError(f"the task gave a difficulty of {difficulty[wrong][0].item():g}; it is a number of 0 or above.")
        mean = difficulty[there].mean()
        weight = difficulty / mean if mean > 0 else torch.ones_like(difficulty)
        return weight.clamp(self.low, self.high).unsqueeze(1).expand_as(batch.sampled)
