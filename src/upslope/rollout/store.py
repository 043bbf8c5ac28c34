"""Rows between those who sample and the one who learns, ready column by column: sampled first, then scored.

It wraps whoever samples. What was sampled goes to the scorers at once, whichever share it is of, and is whole when its rewards are
there; meanwhile others sample, and with ``--max-staleness`` the learner learns. Each row is scored once and handed on once.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from upslope.rollout.pool import Fulfilled, Pool
from upslope.rollout.scoring import ScorerPool, Sheet, Unscored
from upslope.rollout.text import TO_SCORE, UNSCORED
from upslope.rollout.text_rows import paid
from upslope.tasks.scoring import joined_scores
from upslope.types import Assignment, Metrics

Key = tuple[int, int, int]
LOG = "unscored.jsonl"
"""In the run's ``logs``: each answer that nobody could score, and why."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """What came of an assignment before it is scored, with the answers to be scored and the rows they stand in."""

    found: Fulfilled
    sheet: Sheet
    places: list[int]


class ScoredRows:
    """A pool whose rows are sampled by another and scored apart (`upslope.rollout.pool.Pool`).

    Args:
        sampling: Who samples.
        scorers: Who scores.
        steps: The most steps that can be under way: no store fills up beyond that, since nobody assigns more.
    """

    def __init__(self, sampling: Pool, scorers: ScorerPool, steps: int):
        self.sampling, self.scorers, self.steps = sampling, scorers, steps
        self._sampled: dict[Key, Future[Sampled]] = {}
        self._done: dict[Key, Fulfilled] = {}
        self._waited = 0.0

    @property
    def faults(self) -> Counter[str]:
        return Counter(getattr(self.sampling, "faults", {})) + self.scorers.faults

    def publish(self, version: int, weights: Callable[[], dict[str, Tensor]]) -> None:
        self.sampling.publish(version, weights)

    def give(self, assignments: Sequence[Assignment]) -> None:
        for each in assignments:
            self._sampled[each.key] = Future()
            under_way = {step for step, _, _ in self._sampled}
            assert len(under_way) <= self.steps, f"{len(under_way)} steps are under way, and at most {self.steps} can be"
            self.sampling.give([each])
            threading.Thread(target=self._pass_on, args=(each, self._sampled[each.key]), daemon=True).start()

    def _pass_on(self, assignment: Assignment, ready: Future[Sampled]) -> None:
        """Has the rows of an assignment scored as soon as they are sampled."""
        try:
            found = self.sampling.result(assignment)
            self.sampling.forget(assignment)
            notes = found.rows.info
            places = [row for row, note in enumerate(notes) if TO_SCORE in note]
            sheet = Sheet([notes[row].pop(TO_SCORE) for row in places], [notes[row]["response"] for row in places])
            self.scorers.give_sheet(sheet)
            ready.set_result(Sampled(found, sheet, places))
        except BaseException as problem:
            ready.set_exception(problem)

    def result(self, assignment: Assignment) -> Fulfilled:
        if assignment.key not in self._done:
            began = time.perf_counter()
            sampled = self._sampled[assignment.key].result()
            self.scorers.wait(sampled.sheet)
            self._done[assignment.key] = self._scored(assignment, sampled)
            self._waited += time.perf_counter() - began
        return self._done[assignment.key]

    def _scored(self, assignment: Assignment, sampled: Sampled) -> Fulfilled:
        """The rows with what they earned; those that nobody could score say why."""
        rows, good, scores = sampled.found.rows, [], []
        for place, mark in zip(sampled.places, sampled.sheet.marks, strict=True):
            if isinstance(mark, Unscored):
                rows.info[place][UNSCORED] = mark.why
                self._log(assignment, rows.info[place])
            elif mark is not None:
                good.append(place)
                scores.append(mark)
        whole = None if len(good) == rows.rows else good
        return replace(sampled.found, rows=paid(rows, joined_scores(scores), whole))

    def _log(self, assignment: Assignment, note: dict[str, object]) -> None:
        told = {"step": assignment.step} | {name: note[name] for name in ("prompt", "response", UNSCORED)}
        with suppress(OSError), (self.scorers.plan.folder / "logs" / LOG).open("a") as file:  # a full disk drops no more rows
            file.write(json.dumps(told, ensure_ascii=False) + "\n")

    def forget(self, assignment: Assignment) -> None:
        self._sampled.pop(assignment.key, None)
        self._done.pop(assignment.key, None)

    def metrics(self) -> Metrics:
        """``waited`` is how long the learner stood still for rows, sampled and scored."""
        found = self.sampling.metrics() | self.scorers.metrics() | {"waited": self._waited}
        self.scorers.say_states(self.faults)
        self._waited = 0.0
        return found
