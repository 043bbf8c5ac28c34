"""One engine for many requests: what arrives while it is busy goes into its next call together.

Requests that are read as they are written (streams) or that end at a text are sampled window by window, the beginning read again
for each window: the engine is free for others in between, and an answer that has ended is not written on.
"""

from __future__ import annotations

import dataclasses
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.sampling import Engine, Finish
from upslope.serving.requests import Asked, BadRequest

WINDOW = 16
"""Tokens written at once where somebody reads along."""
LINGER = 0.003
"""Seconds an idle engine waits for more after the first request: those sent together should be computed together."""
MOST_WAITING = 256
"""Requests that may wait; more are told to come back later."""


@dataclass(eq=False)
class Row:
    """A completion under way."""

    prompt: list[int]
    numbers: Tensor
    limit: int
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    finish: Finish | None = None
    text: str = ""
    """What is said of it so far: without special tokens, and without the text it ends at."""

    def copy(self) -> Row:
        """The row as it stands."""
        return dataclasses.replace(self, tokens=list(self.tokens), logp=list(self.logp), entropy=list(self.entropy))


class Written(NamedTuple):
    """How far a request is: its rows as they stand, which nobody changes any more, and whether they go on."""

    rows: list[Row]
    going: bool


@dataclass(eq=False)
class Job:
    """A request at work. `told` gets what was written after every call of the engine, or what went wrong."""

    asked: Asked
    rows: list[Row]
    told: queue.SimpleQueue[Written | Exception] = field(default_factory=queue.SimpleQueue)
    dropped: bool = False
    """Nobody waits for it any more."""

    @property
    def windowed(self) -> bool:
        return self.asked.stream or bool(self.asked.stop)

    @property
    def kind(self) -> tuple[object, ...]:
        """Jobs of one kind can share a call."""
        drawn = self.asked.sampling
        return (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p, self.windowed)


@dataclass(eq=False)
class _Weights:
    load: Callable[[], None]
    told: queue.SimpleQueue[Exception | None] = field(default_factory=queue.SimpleQueue)


class Batcher:
    """Owns the engine: only its thread samples or changes weights."""

    def __init__(self, engine: Engine, policy: LanguageModel):
        self.engine, self.policy = engine, policy
        self.calls = 0
        """How often the engine was called."""
        self._closed = False
        self._waiting: queue.Queue[Job | _Weights | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="upslope-batcher", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked) -> Job:
        """Queues a request."""
        if self._closed:
            raise BadRequest("the server is closing.", status=503)
        if self._waiting.qsize() >= MOST_WAITING:
            raise BadRequest(f"{MOST_WAITING} requests are waiting already; try again later.", status=429, code="busy")
        limit = asked.sampling.max_tokens
        prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
        job = Job(asked, [Row(prompt, asked.numbers[place], limit) for place, prompt in enumerate(prompts)])
        self._waiting.put(job)
        return job

    def change(self, load: Callable[[], None]) -> None:
        """Runs ``load`` between two calls of the engine and waits for it: new weights."""
        task = _Weights(load)
        self._waiting.put(task)
        if (failure := task.told.get()) is not None:
            raise failure

    def close(self) -> None:
        """Ends the thread after the call under way; who still waits is told so."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        jobs: list[Job] = []
        while True:
            arrived = self._arrived(wait=not jobs)
            for place, each in enumerate(arrived):
                if each is None:
                    for left in (*jobs, *arrived[place + 1 :]):
                        if left is not None:
                            left.told.put(BadRequest("the server is closing.", status=503))
                    return
                if isinstance(each, _Weights):
                    # Requests that came first are sampled with the weights they came to.
                    jobs = self._call_until_done(jobs)
                    each.told.put(_tried(each.load))
                else:
                    jobs.append(each)
            jobs = self._call(jobs)

    def _arrived(self, wait: bool) -> list[Job | _Weights | None]:
        found: list[Job | _Weights | None] = []
        if wait:
            found.append(self._waiting.get())
            time.sleep(LINGER)
        while True:
            try:
                found.append(self._waiting.get_nowait())
            except queue.Empty:
                return found

    def _call_until_done(self, jobs: list[Job]) -> list[Job]:
        while jobs:
            jobs = self._call(jobs)
        return jobs

    def _call(self, jobs: Sequence[Job]) -> list[Job]:
        """One call of the engine for every kind of job; those that go on."""
        kinds: dict[tuple[object, ...], list[Job]] = {}
        for job in jobs:
            if not job.dropped:
                kinds.setdefault(job.kind, []).append(job)
        unfinished = []
        for same in kinds.values():
            failure = _tried(partial(self._extend, same))
            for job in same:
                if failure is not None:
                    job.told.put(failure)
                    continue
                going = any(row.finish is None for row in job.rows)
                job.told.put(Written([row.copy() for row in job.rows] if going else job.rows, going))
                unfinished += [job] if going else []
        return unfinished

    def _extend(self, jobs: Sequence[Job]) -> None:
        """Writes on every unfinished row: to its end, or by a window."""
        rows = [(job, row) for job in jobs for row in job.rows if row.finish is None]
        room = [min(row.limit - len(row.tokens), WINDOW if job.windowed else row.limit) for job, row in rows]
        sampling = dataclasses.replace(jobs[0].asked.sampling, max_tokens=max(room))
        numbers = torch.zeros(len(rows), max(room))
        for place, (_, row) in enumerate(rows):
            numbers[place, : room[place]] = row.numbers[len(row.tokens) : len(row.tokens) + room[place]]
        contexts = [row.prompt + row.tokens for _, row in rows]
        self.calls += 1
        done = self.engine.generate(contexts, 1, sampling, numbers, room)
        lengths = done.sampled.sum(1).long().tolist()
        columns = zip(*(column.tolist() for column in (done.tokens, done.logp, done.entropy)), strict=True)
        for (job, row), length, finish, (tokens, logp, entropy) in zip(rows, lengths, done.finish, columns, strict=True):
            row.tokens += tokens[:length]
            row.logp += logp[:length]
            row.entropy += entropy[:length]
            self._settle(job.asked, row, finish)

    def _settle(self, asked: Asked, row: Row, finish: Finish) -> None:
        """Whether the row has ended, and its text."""
        if finish == "stop" or len(row.tokens) >= row.limit:
            row.finish = "stop" if finish == "stop" else "length"
        extra = [place for place, token in enumerate(row.tokens) if token in asked.stop_ids]
        if extra:
            self._cut(row, extra[0] + 1)
        row.text = self.policy.decode(row.tokens)
        ends = [place for stop in asked.stop if (place := row.text.find(stop)) >= 0]
        if ends:
            self._cut(row, self._tokens_before(row, asked.stop))
            row.text = row.text[: min(ends)]

    def _tokens_before(self, row: Row, stops: tuple[str, ...]) -> int:
        """The fewest tokens whose text holds a stop text."""
        low, high = 1, len(row.tokens)
        while low < high:
            middle = (low + high) // 2
            said = self.policy.decode(row.tokens[:middle])
            low, high = (low, middle) if any(stop in said for stop in stops) else (middle + 1, high)
        return low

    def _cut(self, row: Row, length: int) -> None:
        row.tokens, row.logp, row.entropy = row.tokens[:length], row.logp[:length], row.entropy[:length]
        row.finish = "stop"


def _tried(run: Callable[[], None]) -> Exception | None:
    """What went wrong, if anything: one request's failure must not end the thread that serves all."""
    try:
        run()
    except (UserError, BadRequest) as wrong:
        return wrong
    except Exception as problem:
        traceback.print_exc(file=sys.stderr)
        return problem
    return None
