"""A pool of processes that score answers: started fresh, killed where one takes too long, replaced where one is lost.

Answers to one problem are scored in one call. Where that fails, whatever the reason, each of them is scored by itself, and one that
fails by itself is tried again as often as the plan says; then it stays unscored, and says why.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from upslope.plain_data import JsonDict
from upslope.rollout.crew import Crew, WorkerState
from upslope.runtime.messages import Message
from upslope.runtime.worker_process import WorkerLost, WorkerProcess
from upslope.tasks.scoring import one_of
from upslope.tasks.text import Scores

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
    def key(self) -> int:
        return id(self)

    @property
    def request(self) -> JsonDict:
        sheet = self.sheet
        return {"problems": [sheet.problems[row] for row in self.rows], "responses": [sheet.responses[row] for row in self.rows]}


class ScoringProcess(WorkerProcess):
    """A process that scores."""

    role = "reward"


class ScorerPool(Crew[Chunk, ScoringProcess, JsonDict]):
    """Scores answers in processes of their own.

    Args:
        plan: How they are started.
    """

    activity = "scoring"
    role, called, busy = "reward_workers", "reward processes", "scoring_busy"

    def __init__(self, plan: ScoringPlan):
        super().__init__(plan.folder, plan.count)
        self.plan = plan
        self.begin()

    # -- for whoever has answers ---------------------------------------------------------------------------------------

    def give_sheet(self, sheet: Sheet) -> None:
        """Takes answers to be scored, those to one problem in one call."""
        places = itertools.groupby(range(len(sheet.responses)), key=lambda row: sheet.problems[row])
        self.give([Chunk(sheet, tuple(rows)) for _, rows in places])

    def wait(self, sheet: Sheet) -> Sequence[Scores | Unscored]:
        """What came of each answer, once all are scored or given up."""
        board = self.board
        with board.changed:
            while not sheet.whole:
                if board.problem is not None:
                    raise board.problem
                board.changed.wait()
        return [mark for mark in sheet.marks if mark is not None]

    def close(self) -> None:
        with self.board.changed:
            self.board.closed = True
            working = [self.workers[number] for number in self.board.working if number in self.workers]
        for process in working:  # nobody wants to know any more
            process.end()
        super().close()

    # -- a process -----------------------------------------------------------------------------------------------------

    def launch(self, number: int) -> ScoringProcess:
        log = self.folder / "logs" / f"reward-{number}.txt"
        return ScoringProcess(f"reward process {number}", self.plan.command, log, self.plan.threads)

    def _start(self, state: WorkerState) -> ScoringProcess:
        process = super()._start(state)
        self.board.lost_in_a_row = 0  # what it dies of from now on is an answer's fault, and answers are given up
        return process

    def hand_over(self, state: WorkerState, worker: ScoringProcess, job: Chunk) -> JsonDict:
        limit = None if self.plan.seconds is None else self.plan.seconds * len(job.rows)
        worker.tell(Message("score", job.request), limit)
        answer = worker.hear("scored", limit).data
        state.rows += 0 if "failed" in answer else len(job.rows)
        return answer

    def finished(self, job: Chunk, found: JsonDict) -> None:
        if "failed" in found:
            self.faults[found["kind"]] += 1
            self._try_again(job, found["failed"])
            return
        scores = Scores(**found)
        for place, row in enumerate(job.rows):
            job.sheet.marks[row] = one_of(scores, place)

    # -- when something goes wrong -------------------------------------------------------------------------------------

    def lost_with(self, job: Chunk, lost: WorkerLost) -> bool:
        hung = lost.kind == "reward_hung"
        self._try_again(job, f"it took longer than {self.plan.seconds:g} s (--reward-seconds)" if hung else str(lost))
        return False

    def _try_again(self, chunk: Chunk, why: str) -> None:
        """Each answer by itself, as long as there are tries left, before anything else; then it stays unscored."""
        if len(chunk.rows) > 1:
            self.board.waiting[:0] = [Chunk(chunk.sheet, (row,)) for row in chunk.rows]
        elif chunk.tries < self.plan.retries:
            self.board.waiting.insert(0, Chunk(chunk.sheet, chunk.rows, chunk.tries + 1))
        else:
            self.faults[DROPPED] += 1
            chunk.sheet.marks[chunk.rows[0]] = Unscored(why)
