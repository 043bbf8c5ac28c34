"""Rows that nobody sampled: solutions and documents, as trajectories to learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from upslope.errors import UserError
from upslope.objective.base import RolloutPlan
from upslope.policies.language_model import LanguageModel
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import token_rows, written_rows
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.text import Problem
from upslope.types import Assignment, Source, Trajectories, View


@dataclass(frozen=True)
class FromAnswers(RolloutPlan):
    """One row for each problem: its solution as it was written (``solution``, else ``answer``), with a stop token behind it.

    Nobody sampled these rows: ``behavior`` is NaN and ``label["source"]`` says DEMONSTRATED. They earn no reward.

    Fields:
        easiest: share of the problems that is learned from: the easiest, by the task's own difficulty. 1 is all; where the task
            says no difficulty, as they come.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"solutions"})
    ranges: ClassVar = {"easiest": "(0, 1]"}

    easiest: float = 1.0

    def build(self, task: Any, policy: Any, **sizes: Any) -> AnswerRollout:
        return AnswerRollout(task, policy, easiest=self.easiest, **sizes)


@dataclass(frozen=True)
class FromDocuments(RolloutPlan):
    """Windows of the documents that come with the problems: plain language modelling, as in pre-training.

    Each problem of a step gives a window of one of its documents, drawn at random. A window begins with the tokenizer's token for a
    beginning, or without one with its first token, which is then not learned. The stop token ends a document's last.

    Fields:
        window: tokens of a row; a longer document is cut into several, and no window is longer than the model's positions.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"documents"})
    ranges: ClassVar = {"window": "[2, inf)"}

    window: int = 512

    def build(self, task: Any, policy: Any, **sizes: Any) -> DocumentRollout:
        return DocumentRollout(task, policy, window=self.window, **sizes)


class AnswerRollout(TextRollout):
    """Solutions of drawn problems in place of sampled answers."""

    provides = FromAnswers.provides

    def __init__(self, *arguments: Any, easiest: float = 1.0, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.easiest = easiest

    def _numbers(self, step: int, attempt: int, tasks: int) -> tuple[int, list[int]]:
        """Of so many more problems the easiest, those of unknown difficulty last."""
        drawn, _ = self._drawn(step, attempt, math.ceil(tasks / self.easiest))
        if self.easiest == 1:
            return len(drawn), list(range(len(drawn)))
        hard = [math.inf if math.isnan(problem.difficulty) else problem.difficulty for problem in drawn]
        return len(drawn), sorted(range(len(drawn)), key=hard.__getitem__)[:tasks]

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """The solution of each of its problems."""
        problems = self.problems_of(assignment)
        if missing := [problem.prompt for problem in problems if not problem.solution]:
            raise UserError(f"this method learns from solutions, and the problem {missing[0]!r} has none. Give it an answer.")
        rows = written_rows(self.policy, [problem.model_input for problem in problems], [problem.solution for problem in problems])
        notes = [
            {"prompt": problem.prompt, "answer": problem.answer, "response": problem.solution, "finish": "given"}
            for problem in problems
        ]
        task = torch.tensor([problem.id for problem in problems], dtype=torch.int64, device=rows.sampled.device)
        return given(rows, assignment.first_group).replace(task=task, info=notes)


class DocumentRollout(TextRollout):
    """Windows of documents in place of sampled answers."""

    provides = FromDocuments.provides

    def __init__(self, *arguments: Any, window: int, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.window = min(window, getattr(self.policy.model.config, "max_position_embeddings", window))

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """A window of a document of each of its problems, drawn at random."""
        problems = self.problems_of(assignment)
        rng = numpy_generator(self.seed, "documents", assignment.step, assignment.attempt)
        own = slice(assignment.first, assignment.first + len(problems))
        which, where = rng.random(assignment.problems)[own], rng.random(assignment.problems)[own]
        chosen = [self._document(problem, number) for problem, number in zip(problems, which, strict=True)]
        pieces = windows(self.policy, chosen, self.window)
        drawn = [some[int(number * len(some))] for some, number in zip(pieces, where, strict=True)]
        rows = token_rows(self.policy, [ids[:1] for ids in drawn], [ids[1:] for ids in drawn])
        notes = [
            {"prompt": "", "answer": "", "response": text, "finish": "given"}
            for text in self.policy.decode_all([ids[1:] for ids in drawn])
        ]
        task = torch.tensor([problem.id for problem in problems], dtype=torch.int64, device=rows.sampled.device)
        return given(rows, assignment.first_group).replace(task=task, info=notes)

    def _document(self, problem: Problem, number: float) -> str:
        if not problem.documents:
            raise UserError(f"this method learns from documents, and the problem {problem.prompt!r} comes with none.")
        return problem.documents[int(number * len(problem.documents))]


def given(rows: Trajectories, first_group: int) -> Trajectories:
    """Rows as they were written: each a group of its own, without reward and without anybody's log-probabilities."""
    source = torch.full_like(rows.group, int(Source.DEMONSTRATED))
    return rows.replace(
        reward=torch.zeros_like(rows.reward),
        group=torch.arange(rows.rows, device=rows.group.device) + first_group,
        behavior=View(torch.full_like(rows.sampled, torch.nan)),
        label={"source": source},
    )


def windows(policy: LanguageModel, documents: Sequence[str], window: int) -> list[list[list[int]]]:
    """The windows of each document as ids; the first id of a window is not learned."""
    begin, stop = policy.tokenizer.bos_token_id, min(policy.stop_ids)
    found = []
    for text in documents:
        ids = [*policy.tokenizer(text, add_special_tokens=False).input_ids, stop]
        if begin is None:  # each window's first token stands for a beginning, and so is the last one of the window before
            found.append([ids[at : at + window] for at in range(0, max(len(ids) - 1, 1), window - 1)])
        else:
            found.append([[begin, *ids[at : at + window - 1]] for at in range(0, len(ids), window - 1)])
    return found
