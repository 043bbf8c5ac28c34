"""Rock, scissors, paper: three answers, none of which is best, as each beats the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.choices import Choices
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.pairs import Pair
from upslope.tasks.text import Problem, Split

ANSWERS = ("r", "s", "p")
PROMPT = "rps="


@dataclass(frozen=True)
class RockScissorsPaper(EmbeddedTask):
    r"""Say r, s or p: rock beats scissors, scissors beat paper, paper beats rock, each with chance ``wins``.

    Preferences that go round have no best answer, and no reward gives them: any score would put one answer on top. The score is
    the policy's chance to win against the best reply to it, :math:`\min_y P(\pi \succ y)`, taken from its exact distribution over
    the three answers: 1/2 at best, where it plays all of them alike. What is missing to 1/2 is its ``exploitability``,
    :math:`\max_y P(y \succ \pi) - 1/2`. Anything else that is said loses to all three.

    There is one problem, in every split; the reward is 1 for any of the three answers, so only comparisons teach something. Pairs
    to learn from are two different answers drawn by ``first``, the winner by ``wins``: they go round as well.

    Fields:
        wins: chance that an answer beats the next. At 1/2 all are alike.
        first: share of r among the reference answers, and so of what a warm-started model says; s and p share the rest.
    """

    kind: ClassVar[str] = "rps"
    about: ClassVar[str] = "Rock, scissors, paper (r, s, p): each beats the next, so none is best; scored by the best reply."

    wins: float = 0.9
    first: float = 0.8

    def __post_init__(self) -> None:
        for name, least in (("wins", 0.5), ("first", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1:
                raise TaskError(f"rps: {name}={value!r} must be a number from {least:g} to 1.")

    @classmethod
    def knobs(cls) -> list[str]:
        return ["wins", "first"]

    def _sized(self, problem: Problem, larger: int, rng: np.random.Generator) -> Problem | None:
        """There is no other problem."""
        return None

    @property
    def max_tokens(self) -> int:
        """One: what is said first counts."""
        return 1

    def longest_answer(self) -> int:
        return 1

    @property
    def start(self) -> tuple[float, ...]:
        """Shares of the reference answers."""
        rest = (1 - self.first) / 2
        return self.first, rest, rest

    @property
    def matrix(self) -> np.ndarray:
        """The chance that each of the three answers beats each other."""
        win, lose = self.wins, 1 - self.wins
        return np.array([[0.5, win, lose], [lose, 0.5, win], [win, lose, 0.5]])

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        # Dealt in their shares, not drawn: a warm start then ends near them.
        exact = np.array(self.start) * count
        each = np.floor(exact).astype(int)
        left = count - int(each.sum())
        if left:
            each += rng.multinomial(left, (exact - each) / (exact - each).sum())
        answers = rng.permutation(np.repeat(np.arange(3), each)).tolist()
        return [self._with_pair(one, *rng.random(2)) for one in answers]

    def _with_pair(self, one: int, drawn: float, won: float) -> Problem:
        """The problem with this reference answer, and with it and another one, drawn by their shares, as the sides of a pair."""
        share, others = np.array(self.start), [place for place in range(3) if place != one]
        first = share[others[0]] / share[others].sum() if share[others].any() else 0.5
        other = others[0] if drawn < first else others[1]
        winner, loser = (one, other) if won < self.matrix[one, other] else (other, one)
        return self.problem(PROMPT, ANSWERS[one], 1, chosen=[ANSWERS[winner]], rejected=[ANSWERS[loser]])

    def pair(self, problem: Problem) -> Pair | None:
        return problem.pair

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        yield from self.sample(count, "train", rng)

    def is_right(self, problem: Problem, answer: str) -> bool:
        return answer in ANSWERS

    def compare(self, problem: Problem, responses: Sequence[str]) -> Sequence[Sequence[float]]:
        places = [ANSWERS.index(text.strip()) if text.strip() in ANSWERS else len(ANSWERS) for text in responses]
        chances = np.pad(self.matrix, ((0, 1), (0, 1)))
        chances[:-1, -1], chances[-1, -1] = 1.0, 0.5
        return chances[np.ix_(places, places)].tolist()

    @property
    def choices(self) -> Choices:
        return Choices(ANSWERS, self.played, "win rate against the best reply", self.start)

    def played(self, chances: np.ndarray) -> dict[str, float]:
        """How well a policy does that gives the three answers with these chances; with what is left it loses."""
        replies = self.matrix @ chances + max(0.0, 1.0 - float(chances.sum()))
        exploitability = float(replies.max()) - 0.5
        return {"score": 0.5 - exploitability, "exploitability": exploitability}

    @classmethod
    def all_give(cls) -> frozenset[str]:
        return super().all_give() | {"comparisons"}
