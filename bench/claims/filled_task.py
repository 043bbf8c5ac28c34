"""Answers most of which are the same whatever the question: for the claim of a method that looks for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import LETTERS
from upslope.tasks.text import Problem

FILLER = "answer: "


@dataclass(frozen=True)
class FilledReverse(EmbeddedTask):
    """Write letters backwards behind a phrase: ``rab=`` -> ``answer: ba``. The phrase itself is not checked.

    Fields:
        length: letters to reverse.
    """

    kind: ClassVar[str] = "filled-reverse"
    about: ClassVar[str] = "Letters backwards behind a phrase: rab= -> answer: ba."

    length: int = 2

    def longest_answer(self) -> int:
        return len(FILLER) + self.length

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for row in rng.integers(len(LETTERS), size=(count, self.length)):
            letters = "".join(LETTERS[i] for i in row)
            yield Problem(f"r{letters}=", FILLER + letters[::-1])

    def is_right(self, problem: Problem, answer: str) -> bool:
        return answer.endswith(problem.answer[-self.length :])
