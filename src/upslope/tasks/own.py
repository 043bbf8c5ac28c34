"""A text task of the user's own: what it raises, or returns in place of what is wanted, is told in a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upslope.errors import TaskError, UserError
from upslope.fields import shown
from upslope.runtime import user_code
from upslope.tasks.giving import CURES
from upslope.tasks.pairs import Pair, as_answers
from upslope.tasks.revisions import Revision
from upslope.tasks.text import Problem, Scores, Split, TextTask, WrappedTask


def make_own(kind: type[TextTask], source: str, knobs: Mapping[str, Any] | None = None) -> OwnTask:
    """The task of this class, from the file ``source``."""
    try:
        return OwnTask(kind(**knobs or {}), source)
    except UserError:
        raise
    except Exception as error:
        raise TaskError(f"{source}:{kind.__name__} could not be made: {user_code.in_words(error, source)}.") from error


@dataclass(frozen=True)
class OwnTask(WrappedTask):
    """A task that may do anything, looked after."""

    source: str
    """Its file, for messages."""

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        found = self._ask(self.task.sample, count, split, rng)
        problems = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else []
        if not problems or not all(isinstance(problem, Problem) for problem in problems):
            raise TaskError(f"{self._place('sample')} returned {shown(found)}; it must return a list of {count} Problem.")
        return problems

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        scores = self._ask(self.task.score, problems, responses)
        if not isinstance(scores, Scores):
            raise TaskError(f"{self._place('score')} returned {shown(scores)}; it must return Scores(reward, correct).")
        if len(scores.reward) != len(responses):
            raise TaskError(f"{self._place('score')} returned {len(scores.reward)} rewards for {len(responses)} responses.")
        for name, column in {"reward": scores.reward, **scores.components}.items():
            for row, value in enumerate(column):
                if not _is_number(value):
                    said = f"the {name} {shown(value)}, which is no finite number below 1e18, for {shown(responses[row])}"
                    raise TaskError(f"{self._place('score')} returned {said} in answer to {shown(problems[row].prompt)}.")
        return scores

    def describe(self) -> str:
        return self._ask(self.task.describe)

    def answer_class(self, problem: Problem, response: str) -> str:
        return self._ask(self.task.answer_class, problem, response)

    def hints(self, problem: Problem) -> tuple[str, ...]:
        found = self._ask(self.task.hints, problem)
        if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
            raise TaskError(f"{self._place('hints')} returned {shown(found)}; it must return texts, from weak to strong.")
        return tuple(found)

    def pair(self, problem: Problem) -> Pair | None:
        found = self._ask(self.task.pair, problem)
        if found is None:
            return None
        sides = [as_answers(side) for side in found] if isinstance(found, Sequence) and len(found) == 2 else []
        if len(sides) != 2 or sides[0] is None or sides[1] is None:
            raise TaskError(f"{self._place('pair')} returned {shown(found)}; it must return chosen and rejected answers, or None.")
        return sides[0], sides[1]

    def revision(self, problem: Problem) -> Revision | None:
        found = self._ask(self.task.revision, problem)
        if found is not None and not isinstance(found, Revision):
            raise TaskError(f"{self._place('revision')} returned {shown(found)}; it must return a Revision, or None.")
        return found

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(self.task.harder, problem, rng)

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(self.task.easier, problem, rng)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._variant(self.task.alike, problem, rng)

    def compare(self, problem: Problem, responses: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._ask(self.task.compare, problem, responses)

    def gives(self) -> frozenset[str]:
        found = self._ask(self.task.gives)
        if isinstance(found, str) or not isinstance(found, Collection) or not all(word in tuple(CURES) for word in found):
            raise TaskError(f"{self._place('gives')} returned {shown(found)}; it must return a set of: {', '.join(CURES)}.")
        return frozenset(found)

    def _variant(self, function: Callable[..., Any], problem: Problem, rng: np.random.Generator) -> Problem | None:
        found = self._ask(function, problem, rng)
        if found is not None and not isinstance(found, Problem):
            raise TaskError(f"{self._place(function.__name__)} returned {shown(found)}; it must return a Problem or None.")
        return found

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UserError:
            raise
        except Exception as error:
            raise TaskError(f"{self._place(function.__name__)} raised {user_code.in_words(error, self.source)}.") from error

    def _place(self, method: str) -> str:
        return f"{self.source}:{type(self.task).__name__}.{method}"


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value) and abs(value) <= 1e18
    except (TypeError, OverflowError):
        return False
