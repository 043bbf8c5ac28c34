"""Further turns: what a part asks to be sampled when it has seen a step's rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from upslope.plain_data import Prompt
from upslope.tasks.text import Problem, Scores

NEW = -1
"""In place of a group's number: a group of its own."""

FURTHER = 1_000_000_000_000_000
"""Numbers of groups that turns open begin here."""

Scorer = Callable[[Sequence[Problem], Sequence[str]], Scores]
"""As `TextTask.score`."""


@dataclass(frozen=True)
class Turn:
    """Something more to be sampled in a step: hints, explanations, rewrites and judgements are turns.

    Fields:
        prompt: what the answer is sampled from.
        problem: what it answers, and is scored as an answer to.
        samples: answers.
        group: number of the group that its rows join; `NEW`: one of its own.
        learn: the context that the policy learns the answer in: the one it was ``"asked"`` in, the prompt of the ``"problem"``
            without what was added, or ``"nothing"``: nobody learns from it.
        role: who speaks, where turns play different parts.
        begun: ids of the answer's beginning. Only what comes behind them is sampled and learned.
        scorer: what scores the answer in place of the task.
    """

    prompt: Prompt
    problem: Problem
    samples: int = 1
    group: int = NEW
    learn: Literal["asked", "problem", "nothing"] = "asked"
    role: str = ""
    begun: tuple[int, ...] = ()
    scorer: Scorer | None = None


@dataclass
class TurnNumbers:
    """What the random numbers and the groups of a part's turns are counted by.

    Fields:
        step, path: of the run, and of the part in its method.
        calls: how often it has sampled in this step.
        groups: groups opened in this step, by all parts.
    """

    step: int
    path: str
    calls: int = 0
    groups: int = 0

    def opened(self, count: int) -> range:
        """Numbers of so many new groups."""
        first = FURTHER + self.groups
        self.groups += count
        return range(first, first + count)
