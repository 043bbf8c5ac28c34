"""Which trajectories enter the update?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Filter
from upslope.types import Batch


@dataclass(frozen=True)
class DropConstantGroups(Filter):
    """Drops groups in which every sample earned exactly the same from the task: they carry no signal (DAPO).

    The task's own reward decides (or what stands for it, such as a vote), before penalties for length and the like.

    Fields:
        refill: sample other tasks in place of the dropped ones until the step is full. Only as many as are missing are
            sampled, so nothing is left over.
        rounds: the most times a step samples; after that it makes do with the groups it has.
    """

    ranges: ClassVar = {"rounds": "[1, inf)"}

    refill: bool = False
    rounds: int = 10

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        return ~batch.group_stats(batch.verdict()).constant
