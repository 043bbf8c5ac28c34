"""A pool of processes that score answers: started fresh, killed where one takes too long, replaced where one is lost.

Answers to one problem are scored in one call. Where that fails, whatever the reason, each of them is scored by itself, and one that
fails by itself is tried again as often as the plan says; then it stays unscored, and says why.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.rollout.processes import MOST_LOST, PATIENCE, Companion, ProcessLost, too_many_lost
from upslope.runtime.messages import Message
from upslope.runtime.process_file import say_states, say_workers
from upslope.tasks.scoring import one_of
from upslope.tasks.text import Scores
from upslope.types import Metrics

DROPPED = "reward_dropped"
"""The kind of fault of an answer that stays unscored."""


@dataclass(frozen=True)
class ScoringPlan:
    """How answers are scored.

    Fields:
        folder: Of the run: processes make task and reward from its ``run.toml``.
        count: How many there are.
        seconds: What scoring an answer may take; None: as long as it takes.
        retries: Further tries of an answer that could not be scored by itself.
        timed: Whether how long each answer took must be known.
        threads: Torch threads of each.
        trusted: Code in the folder that this machine did not write may run.
    """

    folder: Path
    count: int
    seconds: float | None = None
    retries: int = 1
    timed: bool = False
    threads: int = 1
    trusted: bool = False

    def command(self, channel: int) -> list[str]:
        flags = [*(["--timed"] if self.timed else []), *(["--trust"] if self.trusted else [])]
        return [sys.executable, "-m", "upslope.run.scorer", str(self.folder), str(channel), *flags]


@dataclass(frozen=True)
class Unscored:
    """Why an answer could not be scored."""

    why: str


@dataclass
class Sheet:
    """Answers that belong together, and what is known of each: its scores, why there are none, or nothing so far."""

    problems: list[str]
    responses: list[str]
    marks: list[Scores | Unscored | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.marks = [None] * len(self.responses)

    @property
    def whole(self) -> bool:
        return all(mark is not None for mark in self.marks)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Answers that are scored in one call: rows of a sheet; ``tries`` is how often they have failed by themselves."""

    sheet: Sheet
    rows: tuple[int, ...]
    tries: int = 0

    @property
    def request(self) -> JsonDict:
        sheet = self.sheet
        return {"problems": [sheet.problems[row] for row in self.rows], "responses": [sheet.responses[row] for row in self.rows]}


@dataclass
class ScorerState:
    """What one process is doing, for people."""

    number: int
    pid: int = 0
    doing: str = "starting"
    rows: int = 0
    seconds: float = 0.0
    lost: int = 0


@dataclass
class _Board:
    """What the threads of a pool share, all of it under one lock."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[Chunk] = field(default_factory=list)
    working: dict[int, Chunk] = field(default_factory=dict)
    lost_in_a_row: int = 0
    problem: BaseException | None = None
    closed: bool = False


class ScorerPool:
    """Scores answers in processes of their own.

    Args:
        plan: How they are started.
    """

    def __init__(self, plan: ScoringPlan):
        self.plan = plan
        self.faults: Counter[str] = Counter()
        """What went wrong, by kind."""
        self.states = [ScorerState(number) for number in range(plan.count)]
        self.processes: dict[int, Companion] = {}
        self._board = _Board()
        self._since, self._busy_before = time.perf_counter(), 0.0
        self._threads = [threading.Thread(target=self._serve, args=(state,), daemon=True) for state in self.states]
        for thread in self._threads:
            thread.start()

    # -- for whoever has answers ---------------------------------------------------------------------------------------

    def give(self, sheet: Sheet) -> None:
        """Takes answers to be scored, those to one problem in one call."""
        places = itertools.groupby(range(len(sheet.responses)), key=lambda row: sheet.problems[row])
        with self._board.changed:
            self._board.waiting += [Chunk(sheet, tuple(rows)) for _, rows in places]
            self._board.changed.notify_all()

    def wait(self, sheet: Sheet) -> Sequence[Scores | Unscored]:
        """What came of each answer, once all are scored or given up."""
        board = self._board
        with board.changed:
            while not sheet.whole:
                if board.problem is not None:
                    raise board.problem
                board.changed.wait()
        return [mark for mark in sheet.marks if mark is not None]

    def metrics(self) -> Metrics:
        """``scoring_busy`` is the share of time that they worked."""
        now, busy = time.perf_counter(), sum(state.seconds for state in self.states)
        spent = max(now - self._since, 1e-9) * max(self.plan.count, 1)
        found = {"scoring_busy": min((busy - self._busy_before) / spent, 1.0)}
        self._since, self._busy_before = now, busy
        return found

    def write_states(self, faults: Counter[str]) -> None:
        """Who does what, in ``workers.json`` of the run's folder; ``faults`` are also those of others."""
        told = {"reward_workers": [asdict(state) for state in self.states], "waiting_for_reward": len(self._board.waiting)}
        say_states(self.plan.folder, told | {"faults": dict(faults + self.faults)})

    def close(self) -> None:
        """Ends all processes."""
        with self._board.changed:
            self._board.closed = True
            working = set(self._board.working)
            self._board.changed.notify_all()
        for process in list(self.processes.values()):
            process.dismiss() if process.number not in working else process.end()  # nobody wants to know any more
        for thread in self._threads:
            thread.join(PATIENCE)
        for process in list(self.processes.values()):
            process.end()

    # -- the thread of a process ---------------------------------------------------------------------------------------

    def _serve(self, state: ScorerState) -> None:
        """Keeps a process going until the pool is closed."""
        while not self._board.closed:
            try:
                process = self._start(state)
                while (chunk := self._next(state)) is not None:
                    self._hand_over(state, process, chunk)
                return
            except ProcessLost as lost:
                self._replace(state, lost)
            except BaseException as problem:  # the run must not wait for what will never come
                self._fail(problem)
                return

    def _start(self, state: ScorerState) -> Companion:
        plan = self.plan
        process = self.processes[state.number] = Companion.started(plan.folder, "reward", state.number, plan.command, plan.threads)
        state.pid, state.doing = process.process.pid, "starting"
        say_workers(plan.folder, "reward_workers", [each.process.pid for each in self.processes.values()])
        process.ready(None)
        state.doing = "waiting"
        self._board.lost_in_a_row = 0  # what it dies of from now on is an answer's fault, and answers are given up
        return process

    def _next(self, state: ScorerState) -> Chunk | None:
        board = self._board
        with board.changed:
            while not board.waiting and not board.closed:
                board.changed.wait()
            if board.closed:
                return None
            chunk = board.working[state.number] = board.waiting.pop(0)
            return chunk

    def _hand_over(self, state: ScorerState, process: Companion, chunk: Chunk) -> None:
        state.doing, began = "scoring", time.perf_counter()
        limit = self.plan.seconds
        process.channel.settimeout(None if limit is None else limit * len(chunk.rows))
        process.tell(Message("score", chunk.request))
        answer = process.heard("scored").data
        state.seconds, state.doing = state.seconds + time.perf_counter() - began, "waiting"
        with self._board.changed:
            self._board.working.pop(state.number, None)
            if "failed" in answer:
                self.faults[answer["kind"]] += 1
                self._try_again(chunk, answer["failed"])
            else:
                scores = Scores(**answer)
                state.rows += len(chunk.rows)
                for place, row in enumerate(chunk.rows):
                    chunk.sheet.marks[row] = one_of(scores, place)
            self._board.changed.notify_all()

    # -- when something goes wrong -------------------------------------------------------------------------------------

    def _try_again(self, chunk: Chunk, why: str) -> None:
        """Each answer by itself, as long as there are tries left, before anything else; then it stays unscored."""
        if len(chunk.rows) > 1:
            self._board.waiting[:0] = [Chunk(chunk.sheet, (row,)) for row in chunk.rows]
        elif chunk.tries < self.plan.retries:
            self._board.waiting.insert(0, Chunk(chunk.sheet, chunk.rows, chunk.tries + 1))
        else:
            self.faults[DROPPED] += 1
            chunk.sheet.marks[chunk.rows[0]] = Unscored(why)

    def _replace(self, state: ScorerState, lost: ProcessLost) -> None:
        self.processes.pop(state.number).end()
        board, hung = self._board, lost.kind == "reward_hung"
        with board.changed:
            if board.closed:
                return
            state.doing, state.lost = "lost", state.lost + 1
            self.faults[lost.kind] += 1
            if (chunk := board.working.pop(state.number, None)) is not None:
                self._try_again(chunk, f"it took longer than {self.plan.seconds:g} s (--reward-seconds)" if hung else str(lost))
            else:
                board.lost_in_a_row += 1
            if board.lost_in_a_row >= MOST_LOST * self.plan.count:
                board.problem = too_many_lost(self.plan.folder, "reward", board.lost_in_a_row, lost)
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
