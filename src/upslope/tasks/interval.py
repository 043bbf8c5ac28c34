"""Grounding in time, as text: when does a symbol begin and end?

There is no film. A time line is a row of letters in runs, so that a character-level model can learn in minutes what a video model
is asked for: which event is meant, and when it begins and ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import LETTERS
from upslope.tasks.text import Problem, Scores


@dataclass(frozen=True)
class IntervalGrounding(EmbeddedTask):
    """Answer with the first moment of a letter's run and the one behind its last: ``taabbbcc?b=`` -> ``0205``.

    Both numbers have two digits. The reward is the overlap of the two intervals, intersection over union; an answer is *right*
    when that is at least ``right``.

    Fields:
        length: moments of the time line. Longer gives more intervals to choose from, and smaller chances for each.
        events: different letters in it, each in one run.
        right: overlap from which an answer counts as right.
    """

    kind: ClassVar[str] = "interval"
    about: ClassVar[str] = "Say when a letter's run begins and ends: taabbbcc?b= -> 0205."
    grows_by: ClassVar[str] = "events"

    length: int = 16
    events: int = 3
    right: float = 0.7

    def __post_init__(self) -> None:
        self._within(length=(2, 99), events=(1, 26))
        if self.events > self.length:
            raise TaskError(f"interval: events={self.events} do not fit into length={self.length}.")
        if isinstance(self.right, bool) or not isinstance(self.right, (int, float)) or not 0 < self.right <= 1:
            raise TaskError(f"interval: right={self.right!r} must be a number above 0 and at most 1.")

    def longest_answer(self) -> int:
        return 4

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        letters = rng.permuted(np.tile(np.arange(len(LETTERS)), (count, 1)), axis=1)[:, : self.events].tolist()
        # Where the runs meet: moments without repetition, in order.
        meets = np.sort(rng.permuted(np.tile(np.arange(1, self.length), (count, 1)), axis=1)[:, : self.events - 1], axis=1)
        wanted = rng.integers(0, self.events, count).tolist()
        for names, cuts, which in zip(letters, meets.tolist(), wanted, strict=True):
            edges = [0, *cuts, self.length]
            line = "".join(LETTERS[name] * (edges[i + 1] - edges[i]) for i, name in enumerate(names))
            target = (edges[which], edges[which + 1])
            prompt = f"t{line}?{LETTERS[names[which]]}="
            yield self.problem(prompt, f"{target[0]:02d}{target[1]:02d}", self.events, target=list(target))

    def is_right(self, problem: Problem, answer: str) -> bool:
        return overlap(read_interval(answer), problem.info["target"]) >= self.right

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        found = [
            overlap(read_interval(text.strip()), problem.info["target"]) for problem, text in zip(problems, responses, strict=True)
        ]
        correct = [each >= self.right for each in found]
        return Scores(found, correct, {"correct": [float(each) for each in correct]})


def read_interval(answer: str) -> tuple[int, int] | None:
    """The interval four digits stand for; ``None`` for anything else, and for one that does not last."""
    if not re.fullmatch(r"[0-9]{4}", answer):
        return None
    begin, end = int(answer[:2]), int(answer[2:])
    return (begin, end) if begin < end else None


def overlap(interval: tuple[int, int] | None, target: Sequence[int]) -> float:
    """Intersection over union; 0 where there is no interval."""
    if interval is None:
        return 0.0
    shared = max(min(interval[1], target[1]) - max(interval[0], target[0]), 0)
    return shared / (interval[1] - interval[0] + target[1] - target[0] - shared)
