"""A ranked list: recommend to somebody, from what they liked, what goes with it.

The catalogue is a rule instead of a data set: whoever likes ``d`` would like ``de``. So a list has right and wrong items at every
rank, each of several characters, and the best list is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import LETTERS
from upslope.tasks.text import Problem, Scores


@dataclass(frozen=True)
class Recommend(EmbeddedTask):
    """Answer with a list: for each liked letter a title, the letter and its successor: ``ldbk=`` -> ``de,bc,kl``.

    A title hits where it goes with a liked letter and does not stand earlier in the list. The reward is the list's NDCG, which
    discounts the hit at rank k by log2(k + 1); a list of another length earns what its first ``items`` ranks do. An answer is
    *right* with a hit at every rank and nothing behind.

    Fields:
        items: titles asked for. Longer lists have a longer tail, where a single number for the list teaches least.
        liked: letters in the prompt, at least as many.
        letters: how many letters of the alphabet occur.
    """

    kind: ClassVar[str] = "recommend"
    about: ClassVar[str] = "List what goes with what was liked, ranked: ldbk= -> de,bc,kl."
    grows_by: ClassVar[str] = "liked"
    separator: ClassVar[str] = ","

    items: int = 4
    liked: int = 4
    letters: int = 12

    def __post_init__(self) -> None:
        self._within(items=(1, 26), liked=(1, 26), letters=(2, 26))
        if not self.items <= self.liked <= self.letters:
            raise TaskError(
                f"recommend: items={self.items}, liked={self.liked} and letters={self.letters} must not fall from left to right."
            )

    def longest_answer(self) -> int:
        return 3 * self.items - 1

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        liked = rng.permuted(np.tile(np.arange(self.letters), (count, 1)), axis=1)[:, : self.liked].tolist()
        for row in liked:
            titles = [LETTERS[index] + LETTERS[(index + 1) % len(LETTERS)] for index in row]
            prompt = "".join(LETTERS[index] for index in row)
            yield self.problem(f"l{prompt}=", ",".join(titles[: self.items]), self.liked, titles=titles)

    def is_right(self, problem: Problem, answer: str) -> bool:
        return len(answer.split(",")) == self.items and all(self.hits(problem, answer))

    def hits(self, problem: Problem, answer: str) -> list[bool]:
        """Whether each rank holds a title that goes with what was liked, for the first time."""
        said = [title.strip() for title in answer.split(",")]
        ranks = said[: self.items] + [""] * (self.items - len(said))
        return [title in problem.info["titles"] and title not in ranks[:rank] for rank, title in enumerate(ranks)]

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        answers = [text.strip() for text in responses]
        hits = [[float(hit) for hit in self.hits(problem, text)] for problem, text in zip(problems, answers, strict=True)]
        correct = [self.is_right(problem, text) for problem, text in zip(problems, answers, strict=True)]
        tail = self.items // 2
        components = {
            "correct": [float(each) for each in correct],
            "head": [ndcg(row, 0, max(tail, 1)) for row in hits],
            "tail": [ndcg(row, tail, self.items) for row in hits],
        }
        return Scores([ndcg(row, 0, self.items) for row in hits], correct, components, hits)


def ndcg(hits: Sequence[float], begin: int, end: int) -> float:
    """Discounted hits of the ranks ``begin`` to ``end``, as a share of what hits at all of them would give."""
    discounts = [1 / log2(rank + 2) for rank in range(begin, end)]
    return sum(hit * each for hit, each in zip(hits[begin:end], discounts, strict=True)) / sum(discounts)
