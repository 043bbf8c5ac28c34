"""Copying texts of very different lengths: most answers are short, and a few are many times longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import LETTERS, renamed_letters, spell
from upslope.tasks.text import Problem


@dataclass(frozen=True)
class Copy(EmbeddedTask):
    """Write the letters again: ``kbca=`` -> ``bca``. How many there are has a heavy tail, :math:`P(n) \\propto n^{-tail}`.

    Fields:
        shortest, longest: least and most letters. Plain sampling waits for the longest answer of a step.
        tail: how rare long ones are. 0 makes all lengths alike; at 2 nearly all are short.
        letters: how many letters of the alphabet occur. Few make a letter's neighbours ambiguous, so copying is harder.
    """

    kind: ClassVar[str] = "copy"
    about: ClassVar[str] = "Write letters again, mostly few and sometimes many: kbca= -> bca."
    grows_by: ClassVar[str] = "longest"

    shortest: int = 2
    longest: int = 24
    tail: float = 1.0
    letters: int = 10

    def __post_init__(self) -> None:
        self._within(shortest=(1, 200), longest=(self.shortest, 200), letters=(2, 26))
        if isinstance(self.tail, bool) or not isinstance(self.tail, (int, float)) or not 0 <= self.tail <= 10:
            raise TaskError(f"copy: tail={self.tail!r} must be a number from 0 to 10.")

    def longest_answer(self) -> int:
        return self.longest

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        sizes = np.arange(self.shortest, self.longest + 1)
        chance = sizes ** -float(self.tail)
        lengths = rng.choice(sizes, count, p=chance / chance.sum()).tolist()
        for length, row in zip(lengths, rng.integers(0, self.letters, (count, self.longest)), strict=True):
            text = spell(row[:length], LETTERS)
            yield self.problem(f"k{text}=", text, length)

    def of_size(self, size: int) -> Copy:
        return replace(self, hardest=0, shortest=size, longest=size)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return renamed_letters(problem, self.letters, rng)
