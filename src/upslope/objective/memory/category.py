"""What is remembered of each category of tasks: how much was learned from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Memory, State
from upslope.objective.memory.table import empty, looked_up, merged, totals
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class CategoryGain(Memory):
    r"""What answers to each category's tasks taught lately: their mean absolute advantage, as a moving average (SEC).

    .. math::  Q_c \leftarrow (1 - rate)\,Q_c + rate \cdot \mathrm{mean}_{i \in c} |A_i|

    Only categories that were answered change. Rows that a filter dropped taught nothing and count with zero. With rewards of 0 and
    1, and advantages divided by the (population) spread the mean is :math:`2\sqrt{p(1-p)}` where a group's success rate is p.

    Fields:
        rate: how much of the newest step enters. Larger follows the policy faster and is noisier.
        start: what a category has before it is first seen. Large values look into every category first.
    """

    by: ClassVar = "category"
    ranges: ClassVar = {"rate": "[0, 1]"}

    rate: float = 0.5
    start: float = 0.0

    def needs(self) -> frozenset[str]:
        return frozenset({"label.category"})

    def init(self) -> State:
        return empty("gain")

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        return looked_up(state, tasks, {"gain": self.start})[0]["gain"].to(torch.float32)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        if "category" not in batch.label:
            raise MethodError("CategoryGain remembers categories, and these rows have no label 'category'.")
        taught = torch.zeros_like(batch.reward) if batch.advantage is None else batch.row_mean(batch.advantage.abs())
        seen, total, answers = totals(batch, taught, batch.label["category"])
        known, _ = looked_up(state, seen, {"gain": self.start})
        return merged(state, seen, {"gain": (1 - self.rate) * known["gain"] + self.rate * total / answers})
