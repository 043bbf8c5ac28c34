"""A pool of worker processes that sample: started fresh, with the policy's weights by version in memory that they share."""

from __future__ import annotations

from upslope.plain_data import JsonDict
from upslope.rollout.sampling_crew import SamplingCrew, WorkerPlan
from upslope.runtime.messages import Message
from upslope.runtime.shared_weights import SharedWeights, WeightsInMemory
from upslope.runtime.worker_process import WorkerProcess
from upslope.types import Assignment

__all__ = ["SamplingProcess", "WorkerPlan", "WorkerPool"]


class SamplingProcess(WorkerProcess):
    """A process that samples."""

    version: int | None = None

    def fulfil(self, assignment: Assignment, weights: WeightsInMemory | None, silent_seconds: float) -> JsonDict:
        told: JsonDict = {"assignment": assignment.table()}
        files: tuple[int, ...] = ()
        if weights is not None:
            told["weights"], files = weights.plain(), (weights.file,)
        self.tell(Message("fulfil", told, files), silent_seconds)
        return self.hear("fulfilled", silent_seconds).data


class WorkerPool(SamplingCrew[SamplingProcess, WeightsInMemory]):
    """Fulfils assignments in processes of their own (`upslope.rollout.pool.Pool`).

    Args:
        plan: How they are started.
    """

    def __init__(self, plan: WorkerPlan):
        super().__init__(plan, SharedWeights())

    def launch(self, number: int) -> SamplingProcess:
        log = self.folder / "logs" / f"worker-{number}.txt"
        return SamplingProcess(f"worker {number}", self.plan.command, log, self.plan.threads)
