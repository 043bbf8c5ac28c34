"""Rows of preferences: chosen and rejected answers that nobody sampled, as contests to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from upslope.errors import UserError
from upslope.objective.base import RolloutPlan
from upslope.plain_data import Prompt
from upslope.policies.language_model import LanguageModel
from upslope.rollout.given import given
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import written_rows
from upslope.tasks.text import Problem, TextTask
from upslope.types import Assignment, Trajectories

CHOSEN, REJECTED, NEITHER = 1, -1, 0
"""What ``label["side"]`` says of a row."""
FINISH = {CHOSEN: "chosen", REJECTED: "rejected", NEITHER: "mismatched"}


@dataclass(frozen=True)
class FromPairs(RolloutPlan):
    """A contest for each problem: its chosen answers and its rejected ones, as they were written, a stop token behind each.

    Nobody sampled these rows: ``behavior`` is NaN and ``label["source"]`` says DEMONSTRATED. ``label["side"]`` is 1 for a chosen
    answer and -1 for a rejected one. They earn no reward.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"group", "label.side"})
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"pairs"})

    def build(self, task: Any, policy: Any, **sizes: Any) -> PairRollout:
        return PairRollout(task, policy, **sizes)


@dataclass(frozen=True)
class FromLabels(RolloutPlan):
    """Answers that are wanted or not, each by itself; a pair is two of them.

    Fields:
        mismatched: beside each answer a row of it under the prompt of another, with side 0: on these KTO measures how far the
            policy has moved in general. Without them it is taken to have moved not at all.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"group", "label.side"})
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"labels"})

    mismatched: bool = True

    def build(self, task: Any, policy: Any, **sizes: Any) -> LabelRollout:
        return LabelRollout(task, policy, mismatched=self.mismatched, **sizes)


class JudgedAnswer(NamedTuple):
    """An answer to a problem, and which side it is on."""

    problem: Problem
    prompt: Prompt
    text: str
    side: int
    group: int


class PairRollout(TextRollout):
    """Chosen and rejected answers of drawn problems in place of sampled ones."""

    provides = FromPairs.provides

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """The two sides of each of its problems."""
        return judged_rows(self.policy, contests(self.task, self.problems_of(assignment)), assignment.first_group)


class LabelRollout(TextRollout):
    """Wanted and unwanted answers of drawn problems in place of sampled ones."""

    provides = FromLabels.provides

    def __init__(self, *arguments: Any, mismatched: bool, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.mismatched = mismatched

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """The labelled answers of its problems, and each answer under the prompt of the next."""
        single: list[JudgedAnswer] = []
        for problem in self.problems_of(assignment):
            if problem.wanted is not None:
                text, wanted = problem.wanted
                single.append(JudgedAnswer(problem, problem.model_input, text, CHOSEN if wanted else REJECTED, len(single)))
            else:
                single += [each._replace(group=len(single) + place) for place, each in enumerate(contests(self.task, [problem]))]
        if self.mismatched and any(each.prompt != single[0].prompt for each in single):
            single += _under_other_prompts(single)
        return judged_rows(self.policy, single, assignment.first_group)


def _under_other_prompts(answers: Sequence[JudgedAnswer]) -> list[JudgedAnswer]:
    """Each answer under the prompt of the next one that is asked something else."""
    found = []
    for place, each in enumerate(answers):
        following = (answers[(place + step) % len(answers)] for step in range(1, len(answers)))
        other = next(one for one in following if one.prompt != each.prompt)
        found.append(JudgedAnswer(other.problem, other.prompt, each.text, NEITHER, len(answers) + place))
    return found


def contests(task: TextTask, problems: Sequence[Problem]) -> list[JudgedAnswer]:
    """The two sides of each problem, chosen ones first."""
    found = []
    for group, problem in enumerate(problems):
        pair = task.pair(problem)
        if pair is None:
            raise UserError(f"this method learns from pairs, and the problem {problem.prompt[:60]!r} has none. "
                            'Give it "chosen" and "rejected".')  # fmt: skip
        for side, texts in zip((CHOSEN, REJECTED), pair, strict=True):
            found += [JudgedAnswer(problem, problem.model_input, text, side, group) for text in texts]
    return found


def judged_rows(policy: LanguageModel, answers: Sequence[JudgedAnswer], first_group: int = 0) -> Trajectories:
    """These answers as rows, each with its side and its contest."""
    rows = given(written_rows(policy, [each.prompt for each in answers], [each.text for each in answers]), first_group)
    device = rows.sampled.device
    return rows.replace(
        group=torch.tensor([each.group for each in answers], device=device) + first_group,
        task=torch.tensor([each.problem.id for each in answers], dtype=torch.int64, device=device),
        label={**rows.label, "side": torch.tensor([each.side for each in answers], device=device)},
        info=[
            {"prompt": each.problem.prompt, "answer": each.problem.answer, "response": each.text, "finish": FINISH[each.side]}
            for each in answers
        ],
    )
