"""Assignments: what a step wants sampled, as plain data that any process can fulfil."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from upslope.plain_data import JsonDict
from upslope.types.curriculum import KeptProblems, Offer, Order

ATTEMPT = 1_000_000
"""Group numbers of a step's further attempts begin at multiples of this."""


@dataclass(frozen=True, eq=False)
class Choosing:
    """How a curriculum takes part in what is sampled.

    Fields:
        candidates: Tasks drawn for each one that is wanted.
        decide: Makes an order of an offer.
        kept: Problems that the method's memories have kept, if any.
    """

    candidates: int
    decide: Callable[[Offer], Order]
    kept: KeptProblems | None = None


@dataclass(frozen=True, eq=False)
class RolloutRequest:
    """What a learner asks of a rollout.

    Fields:
        step: The step that will learn from the rows, counted from 1.
        attempt: 0 for the step's first rows; then for those that take the place of what a filter dropped.
        tasks: How many tasks; none: as many as the rollout was made for.
        version: Of the policy's weights as they are now: how many steps they have learned from.
        choosing: A curriculum that chooses the tasks, if there is one.
    """

    step: int
    attempt: int = 0
    tasks: int | None = None
    version: int = 0
    choosing: Choosing | None = None


@dataclass(frozen=True)
class Assignment:
    """Rows to be sampled: with the weights of ``version`` they are a function of this alone, wherever and however often it is done.

    Fields:
        step, attempt: Of the request it comes from.
        share, shares: Which piece of that request it is, and of how many.
        version: Of the weights to sample with.
        stage: The stage of the run whose rollout it is; empty outside stages.
        drawn: How many problems were drawn from the task; the draw is a function of the seed, the step and the attempt.
        numbers: Which of them are to be answered; below zero, ``made[-1 - number]``.
        samples: Answers to each of these.
        limit: The most tokens of an answer; 0: the run's.
        temperature: What to sample at; 0: the run's.
        notes: For people, why each problem was chosen, where it was.
        made: Problems that no draw has, as text.
        begun: Answers that go on from an earlier step, or from whoever wrote their beginning, where there are such.
        first, first_row: How many problems, and answers, the shares before this one have, ...
        problems, rows: ... and all shares together.
    """

    step: int
    attempt: int = 0
    share: int = 0
    shares: int = 1
    version: int = 0
    stage: str = ""
    drawn: int = 0
    numbers: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    limit: int = 0
    temperature: float = 0.0
    notes: tuple[JsonDict, ...] = ()
    made: tuple[str, ...] = ()
    begun: tuple[JsonDict, ...] = ()
    first: int = 0
    first_row: int = 0
    problems: int = 0
    rows: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """What names it among all of a run."""
        return self.step, self.attempt, self.share

    @property
    def first_group(self) -> int:
        """Where the numbers of its groups begin; those of different shares and attempts are different."""
        return self.attempt * ATTEMPT + self.share * (ATTEMPT // self.shares)

    @property
    def row_notes(self) -> list[JsonDict]:
        """The notes, once for each answer."""
        notes = self.notes or ({},) * len(self.samples)
        return [note for note, own in zip(notes, self.samples, strict=True) for _ in range(own)]

    def cut(self, shares: int) -> list[Assignment]:
        """The whole as so many shares, or fewer where there are fewer problems: neighbouring problems, as equal as can be."""
        count = len(self.numbers)
        shares = max(1, min(shares, count))
        whole = dataclasses.replace(self, problems=count, rows=sum(self.samples))
        if shares == 1:
            return [whole]
        ends = [count * (number + 1) // shares for number in range(shares)]
        return [whole._piece(share, begin, end, shares) for share, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))]

    def _piece(self, share: int, begin: int, end: int, shares: int) -> Assignment:
        return dataclasses.replace(
            self, share=share, shares=shares, first=begin, first_row=sum(self.samples[:begin]), numbers=self.numbers[begin:end],
            samples=self.samples[begin:end], notes=self.notes[begin:end], begun=self.begun[begin:end],
        )  # fmt: skip

    def table(self) -> JsonDict:
        """As plain data, for another process or a file; `from_table` makes it again."""
        usual = Assignment(self.step)
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if _differs(self, usual, f.name)}

    @classmethod
    def from_table(cls, table: JsonDict) -> Assignment:
        found: JsonDict = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        return cls(**found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _differs(one: Assignment, usual: Assignment, name: str) -> bool:
    return name == "step" or getattr(one, name) != getattr(usual, name)
