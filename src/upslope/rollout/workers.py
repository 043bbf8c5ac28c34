"""A pool of worker processes that sample: started fresh, replaced when they are lost, with the policy's weights by version.

A worker is a thread here and a process there. The thread gives it one assignment at a time and waits for the rows; where the
process dies, falls silent or answers with other weights than it was told, it is replaced and the assignment given out again. Rows
are a function of the assignment and the weights, so that whoever does it in the end makes no difference.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.rollout.pool import Fulfilled
from upslope.rollout.processes import MOST_LOST, PATIENCE, Companion, ProcessLost, too_many_lost
from upslope.rollout.under_way import unpacked
from upslope.runtime.messages import Message
from upslope.runtime.process_file import say_states, say_workers
from upslope.runtime.shared_weights import SharedWeights
from upslope.types import Assignment, Metrics

Key = tuple[int, int, int]
SILENT_SECONDS = 60.0
"""A worker that has said nothing for so long hangs: one that works says so every second."""


@dataclass(frozen=True)
class WorkerPlan:
    """How workers are started.

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
        trusted = ["--trust"] if self.trusted else []
        return [sys.executable, "-m", "upslope.run.worker", str(self.folder), str(channel), *trusted]


@dataclass
class WorkerState:
    """What one worker is doing, for people."""

    number: int
    pid: int = 0
    doing: str = "starting"
    version: int | None = None
    rows: int = 0
    seconds: float = 0.0
    lost: int = 0


@dataclass
class _Board:
    """What the threads of a pool share, all of it under one lock."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[Assignment] = field(default_factory=list)
    working: dict[int, Assignment] = field(default_factory=dict)
    done: dict[Key, Fulfilled] = field(default_factory=dict)
    lost_in_a_row: int = 0
    problem: BaseException | None = None
    closed: bool = False


class WorkerPool:
    """Fulfils assignments in processes of their own (`upslope.rollout.pool.Pool`).

    Args:
        plan: How they are started.
    """

    silent_seconds = SILENT_SECONDS

    def __init__(self, plan: WorkerPlan):
        self.plan = plan
        self.faults: Counter[str] = Counter()
        """What went wrong and was mended, by kind."""
        self.states = [WorkerState(number) for number in range(plan.count)]
        self.workers: dict[int, Companion] = {}
        self._weights, self._board = SharedWeights(), _Board()
        self._waited, self._since = 0.0, time.perf_counter()
        self._busy_before = 0.0
        self._threads = [threading.Thread(target=self._serve, args=(state,), daemon=True) for state in self.states]
        for thread in self._threads:
            thread.start()

    # -- for the rollout -----------------------------------------------------------------------------------------------

    def publish(self, version: int, weights: Callable[[], dict[str, Tensor]]) -> None:
        with self._board.changed:
            if self._weights.newest != version:
                needed = {each.version for each in (*self._board.waiting, *self._board.working.values())}
                self._weights.publish(version, weights(), needed)

    def give(self, assignments: Sequence[Assignment]) -> None:
        with self._board.changed:
            self._board.waiting += assignments
            self._board.changed.notify_all()

    def result(self, assignment: Assignment) -> Fulfilled:
        board, began = self._board, time.perf_counter()
        with board.changed:
            while assignment.key not in board.done:
                if board.problem is not None:
                    raise board.problem
                board.changed.wait()
            self._waited += time.perf_counter() - began
            return board.done[assignment.key]

    def forget(self, assignment: Assignment) -> None:
        with self._board.changed:
            self._board.done.pop(assignment.key, None)

    def metrics(self) -> Metrics:
        """``waited`` is how long the learner stood still for rows, ``worker_busy`` the share of time that workers worked."""
        now, busy = time.perf_counter(), sum(state.seconds for state in self.states)
        spent = max(now - self._since, 1e-9) * max(self.plan.count, 1)
        self._write_states()
        found = {"waited": self._waited, "worker_busy": min((busy - self._busy_before) / spent, 1.0)}
        self._waited, self._since, self._busy_before = 0.0, now, busy
        return found

    def _write_states(self) -> None:
        """Who does what, in ``workers.json`` of the run's folder, for whoever looks at it meanwhile."""
        workers = [asdict(state) for state in self.states]
        say_states(self.plan.folder, {"workers": workers, "waiting": len(self._board.waiting), "faults": dict(self.faults)})

    def close(self) -> None:
        """Ends all workers."""
        with self._board.changed:
            self._board.closed = True
            self._board.changed.notify_all()
        for worker in list(self.workers.values()):
            worker.dismiss()
        for thread in self._threads:
            thread.join(PATIENCE)
        for worker in list(self.workers.values()):
            worker.end()
        self._weights.close()

    # -- the thread of a worker ----------------------------------------------------------------------------------------

    def _serve(self, state: WorkerState) -> None:
        """Keeps a worker going until the pool is closed."""
        while not self._board.closed:
            try:
                worker = self._start(state)
                while (assignment := self._next(state)) is not None:
                    self._hand_over(state, worker, assignment)
                return
            except ProcessLost as lost:
                self._replace(state, lost)
            except BaseException as problem:  # the run must not wait for what will never come
                self._fail(problem)
                return

    def _start(self, state: WorkerState) -> Companion:
        plan = self.plan
        worker = self.workers[state.number] = Companion.started(plan.folder, "worker", state.number, plan.command, plan.threads)
        state.pid, state.doing, state.version = worker.process.pid, "starting", None
        say_workers(plan.folder, "workers", [each.process.pid for each in self.workers.values()])
        worker.ready(self.silent_seconds)
        state.doing = "waiting"
        return worker

    def _next(self, state: WorkerState) -> Assignment | None:
        """The assignment that is wanted first of those that wait; nothing when the pool is closed."""
        board = self._board
        with board.changed:
            while not board.waiting and not board.closed:
                board.changed.wait()
            if board.closed:
                return None
            assignment = board.waiting.pop(0)
            if self.plan.free and self._weights.newest is not None:
                assignment = replace(assignment, version=self._weights.newest)
            board.working[state.number] = assignment
            return assignment

    def _hand_over(self, state: WorkerState, worker: Companion, assignment: Assignment) -> None:
        state.doing, began = "sampling", time.perf_counter()
        with self._board.changed:
            weights = self._weights.versions[assignment.version]
        told: JsonDict = {"assignment": assignment.table()}
        files: tuple[int, ...] = ()
        if state.version != assignment.version:
            told["weights"], files = weights.plain(), (weights.file,)
        worker.tell(Message("fulfil", told, files))
        answer = worker.heard("fulfilled").data
        if answer["version"] != assignment.version or answer["checksum"] != weights.checksum:
            raise ProcessLost("other_weights", f"worker {state.number} sampled with other weights than it was told")
        state.version = assignment.version
        rows = unpacked(answer["rows"]).to(self.plan.device)
        state.rows, state.seconds, state.doing = state.rows + rows.rows, state.seconds + time.perf_counter() - began, "waiting"
        with self._board.changed:
            self._board.working.pop(state.number)
            self._board.done.setdefault(assignment.key, Fulfilled(rows, answer["told"], assignment.version))
            self._board.lost_in_a_row = 0
            self._board.changed.notify_all()

    # -- when something goes wrong -------------------------------------------------------------------------------------

    def _replace(self, state: WorkerState, lost: ProcessLost) -> None:
        """Its assignment is given out again, first of all; the run ends where nothing gets done any more."""
        self.workers.pop(state.number).end()
        board = self._board
        with board.changed:
            if board.closed:
                return
            state.doing, state.lost = "lost", state.lost + 1
            self.faults[lost.kind] += 1
            if (assignment := board.working.pop(state.number, None)) is not None:
                board.waiting.insert(0, assignment)
            board.lost_in_a_row += 1
            if board.lost_in_a_row >= MOST_LOST * self.plan.count:
                board.problem = too_many_lost(self.plan.folder, "worker", board.lost_in_a_row, lost)
                board.closed = True
            board.changed.notify_all()

    def _fail(self, problem: BaseException) -> None:
        with self._board.changed:
            if not self._board.closed:
                if not isinstance(problem, UserError):
                    traceback.print_exception(problem)
                self._board.problem = problem
                self._board.closed = True
            self._board.changed.notify_all()
