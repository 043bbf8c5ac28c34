"""Several tasks as one: ``--task "reverse:length=3+reverse:length=5"``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.data_task import DataTask
from upslope.tasks.pairs import Pair
from upslope.tasks.revisions import Revision
from upslope.tasks.text import SPLITS, Problem, Scores, Split, TextTask

PART, OWN_CATEGORY = "part", "part category"
"""Keys of a problem's info: which part it is of, and the category it has there."""
TRIED = 8
"""Problems of each part whose reference answer is scored, to see whether the parts pay alike."""


@dataclass(frozen=True)
class MixedTask(TextTask):
    """Problems of several tasks, of each equally often; each is scored by its own task.

    The category of a problem says which part it is of: the part's name, of a file only its own name. Answers may be as long as
    the longest of any part.
    """

    parts: tuple[TextTask, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise TaskError("a mixture of no tasks. Give at least one.")
        for number, label in enumerate(self.labels):
            if label in self.labels[:number]:
                told = f"{self.name!r} names {label!r} twice"
                raise TaskError(f"{told}. Leave one out, or rename a file: what is learned of each is told apart by name.")

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the parts, of files without their folders."""
        return tuple(Path(part.name).name if isinstance(part, DataTask) else part.name for part in self.parts)

    @cached_property
    def max_tokens(self) -> int:
        return max(part.max_tokens for part in self.parts)

    @property
    def separator(self) -> str:  # type: ignore[override]
        """That of all parts; where they differ, an answer is one item."""
        found = {part.separator for part in self.parts}
        return found.pop() if len(found) == 1 else ""

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        own = [remark for part in self.parts for remark in getattr(part, "remarks", ())]
        return tuple([*own, *self._unlike_scales(), *self._shared_prompts()])

    def describe(self) -> str:
        return f"A mixture of {len(self.parts)} tasks: {' '.join(part.describe() for part in self.parts)}"

    # -- problems ---------------------------------------------------------------------------------------------------------

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        # A remainder goes to parts by lot, so that over many draws none is preferred.
        shares = np.full(len(self.parts), count // len(self.parts))
        shares[rng.permutation(len(self.parts))[: count % len(self.parts)]] += 1
        found = [
            self._of(number, problem)
            for number, (part, share) in enumerate(zip(self.parts, shares.tolist(), strict=True))
            for problem in part.sample(share, split, rng)
        ]
        return [found[row] for row in rng.permutation(len(found))]

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        rows: dict[int, list[int]] = {}
        for row, problem in enumerate(problems):
            rows.setdefault(self._number(problem), []).append(row)
        reward, correct = [0.0] * len(problems), [False] * len(problems)
        components: dict[str, list[float]] = {}
        items: dict[int, list[float]] = {}
        seconds: dict[int, float] = {}
        for number, mine in sorted(rows.items()):
            scores = self.parts[number].score([self._own(problems[row]) for row in mine], [responses[row] for row in mine])
            for place, row in enumerate(mine):
                reward[row], correct[row] = scores.reward[place], scores.correct[place]
                for name, column in scores.components.items():
                    components.setdefault(name, [math.nan] * len(problems))[row] = column[place]
                if scores.items:
                    items[row] = scores.items[place]
                if scores.seconds:
                    seconds[row] = scores.seconds[place]
        listed = [items.get(row, []) for row in range(len(problems))] if items else []
        timed = [seconds[row] for row in range(len(problems))] if len(seconds) == len(problems) else []
        return Scores(reward, correct, components, listed, timed)

    @property
    def tells_seconds(self) -> bool:
        return all(part.tells_seconds for part in self.parts)

    def answer_class(self, problem: Problem, response: str) -> str:
        return self._part(problem).answer_class(self._own(problem), response)

    def hints(self, problem: Problem) -> tuple[str, ...]:
        return self._part(problem).hints(self._own(problem))

    def pair(self, problem: Problem) -> Pair | None:
        return self._part(problem).pair(self._own(problem))

    def revision(self, problem: Problem) -> Revision | None:
        return self._part(problem).revision(self._own(problem))

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(problem, self._part(problem).harder, rng)

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(problem, self._part(problem).easier, rng)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(problem, self._part(problem).alike, rng)

    def compare(self, problem: Problem, responses: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._part(problem).compare(self._own(problem), responses)

    @property
    def compares(self) -> bool:
        return all(part.compares for part in self.parts)

    def gives(self) -> frozenset[str]:
        return frozenset.intersection(*(part.gives() for part in self.parts)) | {"categories"}

    def first_without(self, word: str) -> str:
        return next((part.first_without(word) for part in self.parts if word not in part.gives()), "")

    def _of(self, number: int, problem: Problem) -> Problem:
        """A part's problem as one of the mixture."""
        own: dict[str, Any] = {OWN_CATEGORY: problem.info["category"]} if "category" in problem.info else {}
        label = self.labels[number]
        unread = problem.unread - {"category"}
        return replace(problem, info={**problem.info, **own, "category": label, PART: label}, unread=unread)

    def _own(self, problem: Problem) -> Problem:
        """A problem of the mixture as its part made it."""
        info = {key: value for key, value in problem.info.items() if key not in (PART, OWN_CATEGORY, "category")}
        own = {"category": problem.info[OWN_CATEGORY]} if OWN_CATEGORY in problem.info else {}
        return replace(problem, info={**info, **own})

    def _number(self, problem: Problem) -> int:
        label = problem.info.get(PART)
        if label not in self.labels:
            told = f"{problem.prompt[:60]!r} is no problem of {self.name!r}: its info says no part"
            raise TaskError(f"{told}. Make problems of a mixture from its own, keeping their info.")
        return self.labels.index(label)

    def _part(self, problem: Problem) -> TextTask:
        return self.parts[self._number(problem)]

    def _variant(self, problem: Problem, make: Callable[..., Problem | None], rng: np.random.Generator) -> Problem | None:
        found = make(self._own(problem), rng)
        return None if found is None else self._of(self._number(problem), found)

    # -- what a user should know --------------------------------------------------------------------------------------------

    def _unlike_scales(self) -> list[str]:
        """That right answers earn more in one part than in another, where references say so."""
        paid: dict[str, float] = {}
        for label, part in zip(self.labels, self.parts, strict=True):
            problems = [each for each in part.sample(TRIED, "train", np.random.default_rng(0)) if each.answer]
            scores = part.score(problems, [problem.answer for problem in problems]) if problems else Scores([], [])
            right = [reward for reward, good in zip(scores.reward, scores.correct, strict=True) if good]
            if right:
                paid[label] = float(np.median(right))
        if not paid or max(paid.values()) - min(paid.values()) <= 1e-6:
            return []
        told = ", ".join(f"{label} {value:g}" for label, value in paid.items())
        return [
            f"The parts of the mixture pay differently for a right answer ({told}): what pays more is learned first, unless the "
            "method divides by each group's spread. Give all of them one scale."
        ]

    def _shared_prompts(self) -> list[str]:
        """That a problem of one part's test is trained on in another."""
        files = [(label, part) for label, part in zip(self.labels, self.parts, strict=True) if isinstance(part, DataTask)]
        found = []
        for label, part in files:
            trained = {problem.prompt for problem in part.division.problems["train"]}
            for other, against in files:
                held_out = {problem.prompt for split in SPLITS[1:] for problem in against.division.problems[split]}
                if label != other and (shared := len(trained & held_out)):
                    found.append(
                        f"{shared} training prompts of {label} are held out in {other}: its score is too good. Leave them out."
                    )
        return found
