"""Further turns: what a part asks to be sampled when it has seen a step's rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from upslope.errors import UserError
from upslope.plain_data import Prompt
from upslope.runtime.seeding import stable_hash
from upslope.tasks.text import Problem, Scores

NEW = -1
"""In place of a group's number: a group of its own."""

FURTHER = 1_000_000_000_000_000
"""Numbers of groups that turns open begin here."""

POLICY = "policy"
"""Who speaks where nobody else is named."""

Scorer = Callable[[Sequence[Problem], Sequence[str]], Scores]
"""As `TextTask.score`."""


@dataclass(frozen=True)
class Mixture:
    """The policy and a reference speaking with one voice: at each token their logits are averaged (Nash-MD).

    Fields:
        reference: its name in the method.
        share: of the reference's logits. 0 is the policy, 1 the reference.
    """

    reference: str = "start"
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UserError(f"Mixture.share is {self.share}; it is the reference's share of the logits, from 0 to 1.")

    def __str__(self) -> str:
        return f"{1 - self.share:g} policy + {self.share:g} {self.reference}"


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
        by: who samples it: the ``"policy"``, a reference of the method by its name, or a `Mixture` of both. ``behavior`` is theirs.
            The part that asks names the references in its ``speakers``.
        begun: ids of the answer's beginning. Only what comes behind them is sampled and learned.
        scorer: what scores the answer in place of the task.
        limit: the most tokens to sample; 0: as many as an answer has room for.
        until: a text that ends it once it was said, as a stop token does: a step of an answer ends with its line.
    """

    prompt: Prompt
    problem: Problem
    samples: int = 1
    group: int = NEW
    learn: Literal["asked", "problem", "nothing"] = "asked"
    role: str = ""
    by: str | Mixture = POLICY
    begun: tuple[int, ...] = ()
    scorer: Scorer | None = None
    limit: int = 0
    until: str = ""


def speaker_label(by: str | Mixture) -> int:
    """What ``label["speaker"]`` is of rows that this one has sampled."""
    return stable_hash(str(by))


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
