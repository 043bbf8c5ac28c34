"""Which decisions are this step's?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.types import Batch, Ended


@dataclass(frozen=True)
class ThisWindow(Weight):
    """Only the decisions made in this step, as ``segment["window"]`` says (T-PPO). Older ones had their turn and are in no mean.

    Fields:
        skip: the last so many decisions before a pause are left out, too: what follows would say most about those.
    """

    scope = "update"

    skip: int = 0

    def __post_init__(self) -> None:
        if self.skip < 0:
            raise MethodError(f"ThisWindow.skip is {self.skip}; it is a number of decisions, 0 or above.")

    def needs(self) -> frozenset[str]:
        return frozenset({"segment.window"})

    def counts_dropped(self) -> bool:
        return False

    def __call__(self, batch: Batch) -> Tensor:
        if "window" not in batch.segment:
            raise MethodError("ThisWindow needs to know when each decision was made: rollout=Windows().")
        taken = (batch.segment["window"] == 0) & (batch.sampled > 0)
        if self.skip and batch.ended is not None:
            paused = ((batch.ended == Ended.PAUSED) & (batch.sampled > 0)).any(1, keepdim=True)
            left = batch.sampled.flip(1).cumsum(1).flip(1)  # decisions from here to the row's end, this one included
            taken = taken & ~(paused & (left <= self.skip))
        return torch.where(taken, 1.0, 0.0).to(batch.sampled)
