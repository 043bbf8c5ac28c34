"""Better than what the task earned before?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from upslope.objective.base import Advantage
from upslope.types import Batch


@dataclass(frozen=True)
class MemoryBaseline(Advantage):
    r"""Reward minus what a shared memory expected of the task before this step: :math:`A_i = R_i - \hat v_{task(i)}`.

    No group is needed: one answer to a task has a signal, and so has a group of equal rewards. The baseline knows nothing of the
    answer, so the gradient stays unbiased.

    Fields:
        memory: the memory's name in the method.
    """

    memory: str = "success"

    def __call__(self, batch: Batch) -> Tensor:
        return batch.per_decision(batch.reward - batch.recall(self.memory).to(batch.reward))
