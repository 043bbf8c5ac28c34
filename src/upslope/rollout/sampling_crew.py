"""Workers that sample, wherever they are: each with a copy of the policy whose weights it is told by version.

Rows are a function of the assignment and the weights, so that whoever does it in the end makes no difference.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.rollout.crew import Crew, Unfinished, Worker, WorkerState
from upslope.rollout.pool import Fulfilled
from upslope.rollout.under_way import unpacked
from upslope.runtime.worker_process import WorkerLost
from upslope.types import Assignment, Metrics


@dataclass(frozen=True)
class WorkerPlan:
    """What workers are, wherever they are started.

    Fields:
        folder: Of the run: workers make task, model and rollout from its ``run.toml``.
        count: How many there are.
        threads: Torch threads of each.
        free: Whether they take the newest weights in place of those that an assignment names.
        trusted: Code in the folder that this machine did not write may run.
        device: Where rows go.
    """

    folder: Path
    count: int
    threads: int = 1
    free: bool = False
    trusted: bool = False
    device: torch.device | str = "cpu"

    def command(self, channel: int) -> list[str]:
        """What starts one as a process of this machine, given the number of an open channel that it inherits."""
        trusted = ["--trust"] if self.trusted else []
        return [sys.executable, "-m", "upslope.run.worker", str(self.folder), str(channel), *trusted]


class Version(Protocol):
    """Weights where workers find them."""

    @property
    def checksum(self) -> int: ...


V = TypeVar("V", bound=Version)
Given = TypeVar("Given", bound=Version, contravariant=True)


class Weights(Protocol[V]):
    """The versions of a policy's weights that somebody may still have to sample with."""

    versions: dict[int, V]

    @property
    def newest(self) -> int | None: ...

    def publish(self, version: int, weights: Mapping[str, Tensor], needed: Iterable[int]) -> None:
        """Copies the weights; of the versions before, those that are ``needed`` stay."""

    def close(self) -> None: ...


class Sampler(Worker, Protocol[Given]):
    """A worker that samples."""

    version: int | None
    """Of the weights that it holds."""

    def fulfil(self, assignment: Assignment, weights: Given | None, silent_seconds: float) -> JsonDict:
        """Its rows, packed, or how far its answers are, with the version and the checksum of the weights that wrote them.

        Args:
            weights: Those it shall take first; none where it holds them already.

        Raises:
            WorkerLost: if it says nothing for so many seconds, or is gone.
            UserError: if it refuses, in its own words.
        """


S = TypeVar("S", bound=Sampler[Any])


class SamplingCrew(Crew[Assignment, S, Fulfilled], Generic[S, V]):
    """Fulfils assignments elsewhere (`upslope.rollout.pool.Pool`).

    Args:
        plan: What the workers are.
        weights: Where they find the policy's weights.
    """

    activity = "sampling"

    def __init__(self, plan: WorkerPlan, weights: Weights[V]):
        super().__init__(plan.folder, plan.count)
        self.plan, self.weights = plan, weights
        self.begin()

    @abstractmethod
    def launch(self, number: int) -> S: ...

    def publish(self, version: int, weights: Callable[[], dict[str, Tensor]]) -> None:
        with self.board.changed:
            if self.weights.newest != version:
                needed = {each.version for each in (*self.board.waiting, *self.board.working.values())}
                self.weights.publish(version, weights(), needed)

    def chosen(self, job: Assignment) -> Assignment:
        newest = self.weights.newest
        return replace(job, version=newest) if self.plan.free and newest is not None else job

    def hand_over(self, state: WorkerState, worker: S, job: Assignment) -> Fulfilled | Unfinished[Assignment]:
        with self.board.changed:
            weights = self.weights.versions[job.version]
        answer = worker.fulfil(job, None if worker.version == job.version else weights, self.silent_seconds)
        if answer["version"] != job.version or answer["checksum"] != weights.checksum:
            raise WorkerLost("other_weights", f"worker {state.number} sampled with other weights than it was told")
        worker.version = state.version = job.version
        if "begun" in answer:
            return Unfinished(replace(job, begun=tuple(answer["begun"])))
        rows = unpacked(answer["rows"]).to(self.plan.device)
        state.rows += rows.rows
        return Fulfilled(rows, answer["told"], job.version)

    def metrics(self) -> Metrics:
        found = super().metrics()
        self.say_states(self.faults)
        return found

    def close(self) -> None:
        super().close()
        self.weights.close()
