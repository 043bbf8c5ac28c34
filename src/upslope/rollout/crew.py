"""Jobs done by workers that may be lost: what waits, what is under way and what is done, and how a lost worker is replaced.

A worker is a thread here, and a process or an actor elsewhere (`Worker`). The thread gives it one job at a time and waits for what
comes of it; where the worker dies, falls silent or cannot be believed, it is replaced and the job given out again.
"""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from upslope.errors import UserError
from upslope.runtime.process_file import say_processes, say_states
from upslope.runtime.worker_process import PATIENCE, WorkerLost
from upslope.types import Metrics

SILENT_SECONDS = 60.0
"""A worker that has said nothing for so long hangs: one that works says so every second."""
STARTING_SECONDS = 600.0
"""What a worker gets to load the task and the model."""
MOST_LOST = 5
"""Workers lost one after another, with nothing done in between, that end the run."""


class Worker(Protocol):
    """Somebody at work elsewhere."""

    @property
    def pid(self) -> int:
        """Of its process; 0 while nobody knows."""

    def wait_until_ready(self, seconds: float) -> None:
        """Until it can be given something to do.

        Raises:
            WorkerLost: if it does not get there.
            UserError: if it refuses, in its own words.
        """

    def leave(self) -> None:
        """Asks it to go, without waiting for it."""

    def end(self) -> None:
        """Kills what is left of it, and all that it has started."""


class Job(Protocol):
    """Something to be done once, known by its key."""

    @property
    def key(self) -> Hashable: ...


J = TypeVar("J", bound=Job)
W = TypeVar("W", bound=Worker)
D = TypeVar("D")


@dataclass(frozen=True)
class Unfinished(Generic[J]):
    """What is left of a job, for whoever is free."""

    job: J


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
class Board(Generic[J, D]):
    """What the threads of a crew share, all of it under one lock."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[J] = field(default_factory=list)
    working: dict[int, J] = field(default_factory=dict)
    done: dict[Hashable, D] = field(default_factory=dict)
    lost_in_a_row: int = 0
    problem: BaseException | None = None
    closed: bool = False


class Crew(ABC, Generic[J, W, D]):
    """Workers, and the jobs they do. A subclass says how a worker is started and how it is given a job.

    Args:
        folder: Of the run, where ``workers.json`` says who does what.
        count: How many workers there are.
    """

    silent_seconds = SILENT_SECONDS
    activity = "working"
    """What a worker does while it has a job, for people."""
    role, called = "workers", "workers"
    """What they are called in the run's files, and by people."""
    busy = "worker_busy"
    """The metric that is the share of time in which they worked."""

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.faults: Counter[str] = Counter()
        """What went wrong and was mended, by kind."""
        self.states = [WorkerState(number) for number in range(count)]
        self.workers: dict[int, W] = {}
        self.board: Board[J, D] = Board()
        self._waited, self._since = 0.0, time.perf_counter()
        self._busy_before = 0.0
        self._threads = [threading.Thread(target=self._serve, args=(state,), daemon=True) for state in self.states]

    def begin(self) -> None:
        """Starts the workers, once all that their threads look at is there."""
        for thread in self._threads:
            thread.start()

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def launch(self, number: int) -> W:
        """A new worker, which need not be ready yet."""

    @abstractmethod
    def hand_over(self, state: WorkerState, worker: W, job: J) -> D | Unfinished[J]:
        """Has a worker do a job, or a piece of it, and waits for it.

        Raises:
            WorkerLost: if it does not, or what it says cannot be believed.
        """

    def chosen(self, job: J) -> J:
        """A job as it is given to a worker now; called under the board's lock."""
        return job

    def launched(self) -> None:
        """There are other workers than before."""
        say_processes(self.folder, self.role, [each.pid for each in self.workers.values()])

    def finished(self, job: J, found: D) -> None:
        """A job is done; called under the board's lock."""
        self.board.done.setdefault(job.key, found)

    def lost_with(self, job: J, lost: WorkerLost) -> bool:
        """A worker was lost while it had a job, which is given out again before all others; called under the board's lock.

        Returns:
            Whether so many of these in a row end the run.
        """
        self.board.waiting.insert(0, job)
        return True

    @property
    def where_they_speak(self) -> str:
        """Where what workers print is to be found."""
        return str(self.folder / "logs")

    # -- for whoever has jobs ------------------------------------------------------------------------------------------

    def give(self, jobs: Sequence[J]) -> None:
        """Takes jobs, in the order in which they will be wanted."""
        with self.board.changed:
            self.board.waiting += jobs
            self.board.changed.notify_all()

    def result(self, job: J) -> D:
        """What came of one, once it is there. It can be asked for again until it is forgotten."""
        board, began = self.board, time.perf_counter()
        with board.changed:
            while job.key not in board.done:
                if board.problem is not None:
                    raise board.problem
                board.changed.wait()
            self._waited += time.perf_counter() - began
            return board.done[job.key]

    def forget(self, job: J) -> None:
        """Nobody will ask for it again."""
        with self.board.changed:
            self.board.done.pop(job.key, None)

    def metrics(self) -> Metrics:
        """``waited`` is how long somebody stood still for what they do, ``worker_busy`` the share of time in which they worked."""
        now, busy = time.perf_counter(), sum(state.seconds for state in self.states)
        spent = max(now - self._since, 1e-9) * max(self.count, 1)
        found = {"waited": self._waited, self.busy: min((busy - self._busy_before) / spent, 1.0)}
        self._waited, self._since, self._busy_before = 0.0, now, busy
        return found

    def say_states(self, faults: Mapping[str, int]) -> None:
        """Who does what, in ``workers.json`` of the run's folder, for whoever looks at it meanwhile.

        Args:
            faults: All of the run's.
        """
        told = {self.role: [asdict(state) for state in self.states], f"waiting_for_{self.role}": len(self.board.waiting)}
        say_states(self.folder, told | {"faults": dict(faults)})

    def close(self) -> None:
        """Ends all workers."""
        with self.board.changed:
            self.board.closed = True
            self.board.changed.notify_all()
        for worker in list(self.workers.values()):
            worker.leave()
        for thread in self._threads:
            thread.join(PATIENCE)
        for worker in list(self.workers.values()):
            worker.end()

    # -- the thread of a worker ----------------------------------------------------------------------------------------

    def _serve(self, state: WorkerState) -> None:
        """Keeps a worker going until the crew is closed."""
        while not self.board.closed:
            try:
                worker = self._start(state)
                while (job := self._next(state)) is not None:
                    self._do(state, worker, job)
                return
            except WorkerLost as lost:
                self._replace(state, lost)
            except BaseException as problem:  # the run must not wait for what will never come
                self._fail(problem)
                return

    def _start(self, state: WorkerState) -> W:
        worker = self.workers[state.number] = self.launch(state.number)
        state.pid, state.doing, state.version = worker.pid, "starting", None
        self.launched()
        worker.wait_until_ready(STARTING_SECONDS)
        if worker.pid != state.pid:  # an actor's is known only now
            state.pid = worker.pid
            self.launched()
        state.doing = "waiting"
        return worker

    def _next(self, state: WorkerState) -> J | None:
        """The job that is wanted first of those that wait; nothing when the crew is closed."""
        board = self.board
        with board.changed:
            while not board.waiting and not board.closed:
                board.changed.wait()
            if board.closed:
                return None
            job = board.working[state.number] = self.chosen(board.waiting.pop(0))
            return job

    def _do(self, state: WorkerState, worker: W, job: J) -> None:
        state.doing, began = self.activity, time.perf_counter()
        found = self.hand_over(state, worker, job)
        state.seconds, state.doing = state.seconds + time.perf_counter() - began, "waiting"
        board = self.board
        with board.changed:
            board.working.pop(state.number)
            if isinstance(found, Unfinished):
                board.waiting.insert(0, found.job)
            else:
                self.finished(job, found)
            board.lost_in_a_row = 0
            board.changed.notify_all()

    # -- when something goes wrong -------------------------------------------------------------------------------------

    def _replace(self, state: WorkerState, lost: WorkerLost) -> None:
        """Its job is given out again, first of all; the run ends where nothing gets done any more."""
        if (worker := self.workers.pop(state.number, None)) is not None:
            worker.end()
        board = self.board
        with board.changed:
            if board.closed:
                return
            state.doing, state.lost = "lost", state.lost + 1
            self.faults[lost.kind] += 1
            job = board.working.pop(state.number, None)
            if job is None or self.lost_with(job, lost):
                board.lost_in_a_row += 1
            if board.lost_in_a_row >= MOST_LOST * self.count:
                told = f"{board.lost_in_a_row} {self.called} were lost one after another; the last: {lost}"
                told += f". What they said is in {self.where_they_speak}"
                board.problem = UserError(f"{told}. Mend that, and 'upslope resume {self.folder}' goes on.")
                board.closed = True
            board.changed.notify_all()

    def _fail(self, problem: BaseException) -> None:
        with self.board.changed:
            if not self.board.closed:
                if not isinstance(problem, UserError):
                    traceback.print_exception(problem)
                self.board.problem = problem
                self.board.closed = True
            self.board.changed.notify_all()
