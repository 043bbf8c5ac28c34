"""A call of the engine that takes turns with others."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.record import Progress, Record
from upslope.serving.jobs import RequestJob, settle
from upslope.types import Engine

SLICE = 0.05
"""Seconds a call runs before it is the next one's turn; a token that takes longer is finished."""
WINDOW = 16
"""Tokens after which a call is looked into where somebody reads along or texts end an answer."""
READ_AGAIN = 4
"""A call has run so many times as long as reading took before it is interrupted, to be read again with what came meanwhile."""
GATHER = 0.1
"""Seconds a call runs at least before it is interrupted: what is nearly done is not worth it."""


class Underway(Protocol):
    """What `upslope.rollout.engines.torch_engine.TorchEngine.begin` gives."""

    def advance(self) -> bool: ...
    def close(self) -> None: ...
    def written(self) -> Record: ...


class Member(NamedTuple):
    """A row in a call."""

    job: RequestJob
    row: int
    before: int
    """Tokens it had when the call began."""


class Call:
    """Rows of some jobs of one kind, continued together.

    Args:
        rows: jobs, and which of their rows.
        place: where the engine keeps the call's memory.
    """

    def __init__(self, engine: Engine, policy: LanguageModel, rows: Sequence[tuple[RequestJob, int]], place: int):
        self.engine, self.policy, self.place = engine, policy, place
        self.members = [Member(job, row, len(job.rows[row].tokens)) for job, row in rows]
        self.jobs = list(dict.fromkeys(job for job, _ in rows))
        self.kind, self.size = self.jobs[0].kind, self.jobs[0].size
        self.steps = 0
        self.read_seconds = self.ran_seconds = 0.0
        room = [job.rows[row].limit - before for job, row, before in self.members]
        self.room = max(room)
        sampling = dataclasses.replace(self.jobs[0].asked.sampling, max_tokens=self.room)
        numbers = torch.zeros(len(rows), self.room)
        for place_in_call, (job, row, before) in enumerate(self.members):
            numbers[place_in_call, : room[place_in_call]] = job.numbers_of(row)[before:]
        contexts = [job.rows[row].prompt + job.rows[row].tokens for job, row, _ in self.members]
        if hasattr(engine, "begin"):
            call = engine.begin(contexts, 1, sampling, numbers, room, False, place)
            self.under: Underway = call
            self.progress: Progress = call.job.progress
        else:
            self.progress = Progress.of(len(rows))
            self.under = _Whole(engine, contexts, sampling, numbers, room, self.progress)

    # -- a turn ------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """One turn; whether the call goes on."""
        steps = WINDOW if any(job.windowed for job in self.jobs) else self.room
        began = time.monotonic()
        going, spent, first = True, False, self.steps == 0
        while going and not spent:
            going = self.under.advance()
            self.steps, steps = self.steps + 1, steps - 1
            if first:  # prompts are read with the first token
                self.read_seconds, began, first = time.monotonic() - began, time.monotonic(), False
            spent = steps == 0 or time.monotonic() - began >= SLICE
        self.ran_seconds += time.monotonic() - began
        self._collect()
        return going and any(self._wanted(member) for member in self.members)

    def _wanted(self, member: Member) -> bool:
        return not member.job.dropped and member.job.rows[member.row].finish is None

    def _collect(self) -> None:
        """Takes over what has ended and what is read along, tells the jobs, and withdraws the rows that nobody wants on."""
        ended = self.progress.ended.tolist()
        looked = [place for place, member in enumerate(self.members)
                  if self._wanted(member) and (ended[place] or member.job.windowed)]  # fmt: skip
        if looked:
            self._take(looked)
            for job in dict.fromkeys(self.members[place].job for place in looked):
                job.tell()
        self.progress.withdrawn[:] = torch.tensor([not self._wanted(member) for member in self.members])

    def _take(self, places: list[int]) -> None:
        """What was written of some rows since it was last looked at."""
        record = self.under.written()
        some = torch.tensor(places, device=record.tokens.device)
        lengths = record.sampled[some].sum(1).long()
        width = int(lengths.max())
        columns = zip(*(column[some, :width].tolist() for column in (record.tokens, record.logp, record.entropy)), strict=True)
        stops = self.policy.stop_ids
        for place, length, (tokens, logp, entropy) in zip(places, lengths.tolist(), columns, strict=True):
            member = self.members[place]
            row = member.job.rows[member.row]
            known = len(row.tokens) - member.before
            if length == known:
                continue
            row.tokens += tokens[known:length]
            row.logp += logp[known:length]
            row.entropy += entropy[known:length]
            settle(member.job.asked, row, self.policy, "stop" if row.tokens[-1] in stops else "length")

    # -- its end -----------------------------------------------------------------------------------------------------------

    @property
    def may_rest(self) -> bool:
        """Whether it can be interrupted for others: it has run for a while, in proportion to what reading it again costs."""
        if self.steps == 0 or self.ran_seconds < max(GATHER, READ_AGAIN * self.read_seconds):
            return False
        # A step may be several tokens of a row.
        said = max(1, int(self.under.written().sampled.sum(1).max()))
        return (self.room - said) * self.ran_seconds / said > GATHER  # else it is nearly done

    def rest(self) -> list[RequestJob]:
        """Interrupts it; the jobs that are to be continued."""
        waiting = [place for place, member in enumerate(self.members) if self._wanted(member)]
        if waiting:
            self._take(waiting)
        self.under.close()
        for job in self.jobs:
            job.tell()
        return [job for job in self.jobs if not job.dropped and any(row.finish is None for row in job.rows)]

    def close(self, free: bool) -> None:
        """Ends it where it is; ``free`` gives back its memory, which else the next call takes over."""
        self.under.close()
        if free and hasattr(self.engine, "release"):
            self.engine.release(self.place)


class _Whole:
    """The call of an engine that cannot be interrupted."""

    def __init__(
        self, engine: Engine, contexts: list[list[int]], sampling: object, numbers: Tensor, room: list[int], progress: Progress
    ):
        self.asked, self.engine, self.progress = (contexts, 1, sampling, numbers, room), engine, progress
        self.record: Record | None = None

    def advance(self) -> bool:
        done = self.engine.generate(*self.asked)  # type: ignore[arg-type]
        self.record = Record(done.tokens, done.sampled, done.logp, done.entropy)
        self.progress.ended[:] = True
        return False

    def written(self) -> Record:
        assert self.record is not None
        return self.record

    def close(self) -> None:
        self.record = None
