"""What help there is with a problem, from the weakest to the strongest, and how it is put into a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.plain_data import Prompt
from upslope.tasks.text import Problem, TextTask
from upslope.types import Part


class Hints(Part):
    """A ladder of hints: texts, the weakest first. A problem may have none."""

    scope = "step"
    lead: str
    """What stands before a hint in the prompt."""

    def __call__(self, task: TextTask, problem: Problem) -> tuple[str, ...]:
        raise NotImplementedError

    def prompt(self, task: TextTask, problem: Problem, hint: str) -> Prompt:
        """The prompt of a problem with a hint in it."""
        return task.guided(problem, self.lead, hint)


@dataclass(frozen=True)
class SolutionPrefix(Hints):
    """The beginning of the solution, by characters, ever more of it (GHPO).

    Fields:
        shares: of the solution's characters, one for each step of the ladder. More steps ask more often and help less at a time.
        lead: what stands before it in the prompt.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"solutions"})

    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    lead: str = "The following text is the beginning of the answer:"

    def __post_init__(self) -> None:
        steps = list(self.shares)
        if not steps or steps != sorted(set(steps)) or not (steps[0] > 0 and steps[-1] <= 1):
            raise MethodError(
                f"SolutionPrefix.shares is {self.shares}; it is a ladder of shares above 0 and up to 1, each above the last."
            )

    def __call__(self, task: TextTask, problem: Problem) -> tuple[str, ...]:
        text = problem.solution
        beginnings = (text[: round(share * len(text))] for share in self.shares)
        return tuple(dict.fromkeys(beginning for beginning in beginnings if beginning))


@dataclass(frozen=True)
class TaskHints(Hints):
    """The hints that the task has for a problem (Scaf-GRPO).

    Fields:
        most: of a longer list only so many, spread from the weakest to the strongest; 0 takes all.
        lead: what stands before one in the prompt.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"hints"})
    ranges: ClassVar = {"most": "[0, inf)"}

    most: int = 12
    lead: str = "Hint:"

    def __call__(self, task: TextTask, problem: Problem) -> tuple[str, ...]:
        found = task.hints(problem)
        if not self.most or len(found) <= self.most:
            return found
        last = len(found) - 1
        places = [last] if self.most == 1 else [round(step * last / (self.most - 1)) for step in range(self.most)]
        return tuple(found[place] for place in places)


@dataclass(frozen=True)
class AnswerShown(Hints):
    """The answer itself, to be explained (ExPO).

    Fields:
        lead: what stands before it in the prompt.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"answers"})

    lead: str = "Explain step by step how to come to this answer, and end with it:"

    def __call__(self, task: TextTask, problem: Problem) -> tuple[str, ...]:
        return (problem.answer,) if problem.answer else ()


@dataclass(frozen=True)
class DocumentsShown(Hints):
    """The documents that come with the problem, all of them (PoRo).

    Fields:
        lead: what stands before them in the prompt.
    """

    needs_of_task: ClassVar[frozenset[str]] = frozenset({"documents"})

    lead: str = "Answer by these documents:"

    def __call__(self, task: TextTask, problem: Problem) -> tuple[str, ...]:
        return ("\n".join(problem.documents),) if problem.documents else ()
