"""One engine for many requests, in turns: what arrives while it is busy goes into its next call together.

Small requests of one kind share a call. What comes while it runs joins it: the call is interrupted and read again with the new
ones, at most so often that reading stays a small part of the work. Large requests have calls of their own, which are never read
again; all calls take turns of a twentieth of a second. So a small request waits for about one turn of each call, whatever else is
being served, and none is left out. Which rows share a call, and where it was interrupted, changes nothing about what they say,
rounding apart.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.serving.calls import Call
from upslope.serving.jobs import RequestJob
from upslope.serving.requests import BadRequest, CompletionRequest
from upslope.serving.scoring import ScoreCall
from upslope.types import Engine

LINGER = 0.003
"""Seconds an idle engine waits for more after the first request: those sent together should be computed together."""
MOST_WAITING = 1536
"""Requests under way or waiting; more are told to come back later."""
MOST_WAITING_ROWS = 2**16
"""Their completions."""
MOST_WAITING_TOKENS = 2**24
"""The most tokens they may write."""
CALL_ROWS = 1024
"""Completions in one call."""
CALL_READS = 2**16
"""Tokens of different texts that one call reads before it writes: reading cannot be interrupted."""
SMALL_CALLS = 3
"""Calls of small requests at once, one for each kind; and one each of large and of very large ones."""


@dataclass(eq=False)
class _Weights:
    load: Callable[[], None]
    told: queue.SimpleQueue[Exception | None] = field(default_factory=queue.SimpleQueue)


class Batcher:
    """Owns the engine: only its thread samples or changes weights."""

    def __init__(self, engine: Engine, policy: LanguageModel):
        self.engine, self.policy = engine, policy
        if isinstance(engine, TorchEngine):
            engine.paged = False  # a row that is read along cannot begin again
        self.calls = 0
        """How often the engine was called."""
        self._closed = False
        self._load_lock = threading.Lock()
        self._load = [0, 0, 0]
        """Requests, completions and tokens that have been taken and not ended."""
        self._waiting: queue.Queue[RequestJob | _Weights | None] = queue.Queue()
        self._jobs: deque[RequestJob] = deque()
        """Those that have completions in no call, in the order in which they get their turn."""
        self._calls: deque[Call | ScoreCall] = deque()
        self._thread = threading.Thread(target=self._work, name="upslope-batcher", daemon=True)
        self._thread.start()

    def submit(self, asked: CompletionRequest) -> RequestJob:
        """Queues a request. Who submits it must `end` it."""
        if self._closed:
            raise BadRequest("the server is closing.", status=503)
        job = RequestJob.of(asked)
        with self._load_lock:
            load = [had + more for had, more in zip(self._load, _load_of(job), strict=True)]
            limits = {"requests": MOST_WAITING, "completions": MOST_WAITING_ROWS, "tokens": MOST_WAITING_TOKENS}
            for count, (what, most) in zip(load, limits.items(), strict=True):
                if count > most:
                    raise BadRequest(f"{most:,} {what} are waiting already; try again later.", status=429, code="busy")
            self._load = load
        self._waiting.put(job)
        return job

    def end(self, job: RequestJob) -> None:
        """Nobody waits for the job any more: what is still unwritten of it is given up."""
        job.dropped = True
        with self._load_lock:
            self._load = [had - less for had, less in zip(self._load, _load_of(job), strict=True)]

    def change(self, load: Callable[[], None]) -> None:
        """Runs ``load`` between two calls of the engine and waits for it: new weights."""
        task = _Weights(load)
        self._waiting.put(task)
        if (failure := task.told.get()) is not None:
            raise failure

    def close(self) -> None:
        """Ends the thread after the turn under way; who still waits is told so."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            self._take_in()
            self._turn()
        left: list[RequestJob | _Weights | None] = [*self._jobs, *(job for call in self._calls for job in call.jobs)]
        while not self._waiting.empty():
            left.append(self._waiting.get_nowait())
        for each in left:
            if each is not None:
                each.told.put(_closing())

    def _take_in(self) -> None:
        for each in self._arrived():
            if isinstance(each, RequestJob):
                self._jobs.append(each)
            elif each is not None:
                # Requests that came first are sampled with the weights they came to.
                while (self._jobs or self._calls) and not self._closed:
                    self._turn()
                each.told.put(_closing() if self._closed else _tried(each.load))

    def _arrived(self) -> list[RequestJob | _Weights | None]:
        found: list[RequestJob | _Weights | None] = []
        if not self._jobs and not self._calls:
            found.append(self._waiting.get())
            time.sleep(LINGER)
        while not self._waiting.empty():
            found.append(self._waiting.get_nowait())
        return found

    def _turn(self) -> None:
        """Begins what can begin, then lets the call that has waited longest run for a while."""
        self._jobs = deque(job for job in self._jobs if not job.dropped)
        first: dict[object, RequestJob] = {}
        for job in self._jobs:
            first.setdefault(job.kind, job)
        for job in first.values():
            if self._make_room(job):
                self._begin(job)
        if not self._calls:
            return
        call = self._calls[0]
        going: list[bool] = []
        failure = _tried(lambda: going.append(call.run()))
        self._calls.popleft()
        if failure is not None:
            self._fail(call.jobs, failure)
        self._hand_on(call.jobs)
        if any(going):
            self._calls.append(call)
        else:
            call.close(free=failure is not None or (call.size > 0 and any(job.dropped for job in call.jobs)))

    def _make_room(self, job: RequestJob) -> bool:
        """Whether a call for this job can begin now; interrupts one that it is to join or to take turns with."""
        if job.size:
            return all(call.size != job.size for call in self._calls)
        small = [call for call in self._calls if call.size == 0]
        same = [call for call in small if call.kind == job.kind]
        if not same and len(small) < SMALL_CALLS:
            return True
        resting = max((call for call in same or small if call.may_rest), key=lambda call: call.ran_seconds, default=None)
        if resting is None:
            return False
        self._calls.remove(resting)
        failure = _tried(lambda: self._jobs.extend(job for job in resting.rest() if job not in self._jobs))
        if failure is not None:
            self._fail(resting.jobs, failure)
        self._hand_on(resting.jobs)
        return True

    def _hand_on(self, jobs: list[RequestJob]) -> None:
        """Queues those that are written and to be scored now."""
        for job in jobs:
            if job.to_score and not job.handed_on and not job.dropped:
                job.handed_on = True
                self._jobs.append(job)

    def _begin(self, first: RequestJob) -> None:
        """A call with this job's rows and those of others of its kind, as many as one call takes."""
        alike = [job for job in self._jobs if job.kind == first.kind]
        if first.to_score:
            self._jobs = deque(job for job in self._jobs if job.kind != first.kind)
            for job in alike:
                job.handed_on = True
            self._calls.append(ScoreCall(self.policy, alike))
            return
        rows, left = _first_rows(alike)
        # Behind the others: what is large takes turns.
        self._jobs = deque([*(job for job in self._jobs if job.kind != first.kind), *left])
        used = {call.place for call in self._calls}
        place = next(number for number in range(len(used) + 1) if number not in used)
        self.calls += 1
        failure = _tried(lambda: self._calls.append(Call(self.engine, self.policy, rows, place)))
        if failure is not None:
            self._fail(list(dict.fromkeys(job for job, _ in rows)), failure)

    def _fail(self, jobs: list[RequestJob], failure: Exception) -> None:
        for job in jobs:
            job.dropped = True
            job.told.put(failure)


def _first_rows(jobs: list[RequestJob]) -> tuple[list[tuple[RequestJob, int]], list[RequestJob]]:
    """As many unfinished rows of some jobs as one call takes, and the jobs of which some are left."""
    rows: list[tuple[RequestJob, int]] = []
    texts: set[tuple[int, ...]] = set()
    reads = 0
    for number, job in enumerate(jobs):
        for place, row in enumerate(job.rows):
            if row.finish is not None:
                continue
            text = (*row.prompt, *row.tokens)
            reads += 0 if text in texts else len(text)
            if len(rows) >= CALL_ROWS or (rows and reads > CALL_READS):
                return rows, [*jobs[number + 1 :], job]
            texts.add(text)
            rows.append((job, place))
    return rows, []


def _load_of(job: RequestJob) -> tuple[int, int, int]:
    return 1, len(job.rows), job.tokens


def _closing() -> BadRequest:
    return BadRequest("the server is closing.", status=503)


def _tried(run: Callable[[], object]) -> Exception | None:
    """What went wrong, if anything: one request's failure must not end the thread that serves all."""
    try:
        run()
    except (UserError, BadRequest) as wrong:
        return wrong
    except Exception as problem:
        traceback.print_exc(file=sys.stderr)
        return problem
    return None
