"""What is remembered of each task: how it went the last time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Memory, State
from upslope.objective.memory.table import empty, looked_up, merged, success, totals
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class LastSuccess(Memory):
    """The share of a task's answers that were right when it was last asked, by rewards cut to [0, 1]; NaN if it never was."""

    def init(self) -> State:
        return empty("rate")

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        return looked_up(state, tasks, {"rate": math.nan})[0]["rate"].to(torch.float32)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        seen, solved, answers = totals(batch, success(batch))
        return merged(state, seen, {"rate": solved / answers})
