"""Rewriting: problems the policy fails at or half knows are put another way, by itself or by the task, and answered as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.evolve.evolving import descended
from upslope.objective.base import Data, DataContext
from upslope.tasks.messages import readable
from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import Turn
from upslope.types import Metrics, Part, Trajectories

HARD = "hard"
"""Name of the signal that marks rows of hard problems, and of what was made of them."""


class Asked(NamedTuple):
    """A problem of the step that is to be rewritten."""

    problem: Problem
    simplify: bool
    """Put more simply, as it is too hard; otherwise only put another way."""
    samples: int
    """Answers that it had, and that its rewrite gets."""


class Rewriter(Part):
    """Who rewrites problems: a new one for each that is asked for, or none."""

    scope = "step"

    def __call__(self, asked: Sequence[Asked], context: DataContext) -> list[Problem | None]:
        raise NotImplementedError


@dataclass(frozen=True)
class PolicyRewrites(Rewriter):
    """The policy itself writes the new prompt, given the problem and its answer, which stays the same (CLPO).

    Nobody checks that it does: answers to a rewrite that has another answer are as a rule all wrong, and then not learned from.

    Fields:
        simplify: what is asked of it for hard problems; the answer stands behind it.
        diversify: for those that it half knows.
    """

    text_only: ClassVar[bool] = True
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"answers"})

    simplify: str = (
        "Do not solve this problem: rewrite it, simpler, clearer and more direct, with the same task, the same instructions and "
        "the same answer, and without giving the answer away. Write nothing but the new problem. Its answer is:"
    )
    diversify: str = (
        "Do not solve this problem: rewrite it in other words and another order, with the same meaning, the same instructions and "
        "the same answer, and without giving the answer away. Write nothing but the new problem. Its answer is:"
    )

    def __call__(self, asked: Sequence[Asked], context: DataContext) -> list[Problem | None]:
        leads = [self.simplify if each.simplify else self.diversify for each in asked]
        prompts = [context.task.guided(each.problem, lead, each.problem.answer) for each, lead in zip(asked, leads, strict=True)]
        fitting = [place for place, fits in enumerate(context.fits(prompts)) if fits]
        found: list[Problem | None] = [None] * len(asked)
        if fitting:
            turns = [
                Turn(prompts[place], asked[place].problem, learn="nothing", role="rewriter", scorer=_unscored) for place in fitting
            ]
            for place, note in zip(fitting, context.sample(turns).info, strict=True):
                found[place] = with_prompt(asked[place].problem, str(note["response"]).strip())
        return found


@dataclass(frozen=True)
class TaskRewrites(Rewriter):
    """The task makes an easier problem of a hard one, and another as hard of one that is half known. Answers go with them."""

    text_only: ClassVar[bool] = True
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"variants"})

    def __call__(self, asked: Sequence[Asked], context: DataContext) -> list[Problem | None]:
        rng, task = context.rng(), context.task
        return [(task.easier if each.simplify else task.alike)(each.problem, rng) for each in asked]


@dataclass(frozen=True)
class Rewrites(Data):
    """Rewrites problems by how many answers were right, and adds the answers to the new ones, in groups of their own (CLPO).

    A rewrite that is empty, that is a problem of the step or one made before it, or whose prompt leaves no room for an answer is
    dropped and counted; so are the answers where all or none are right, as they say nothing. Rows of hard problems and of what was
    made of them are marked in ``signal["hard"]``.

    Fields:
        rewriter: who rewrites.
        hard: a problem is hard if at most this share of its answers is right, and then simplified; below 0 none is.
        medium: one that is not hard, with at most this share, is put another way; up to ``hard`` none is.
        which: whether both are rewritten, only the ``"hard"`` or the ``"medium"`` ones, or none.
        success: a reward above it is a right answer.
    """

    text_only: ClassVar[bool] = True
    judges_by: ClassVar[str] = "success"
    ranges: ClassVar = {"hard": "[-1, 1]", "medium": "[-1, 1]", "success": "(-inf, inf)"}

    rewriter: Rewriter = field(default_factory=PolicyRewrites)
    hard: float = 0.3
    medium: float = 0.7
    which: Literal["both", "hard", "medium", "none"] = "both"
    success: float = 0.0

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        rate = self._success_rate(rows)
        rows = rows.replace(signal={**rows.signal, HARD: (rate <= self.hard).to(rows.reward)})
        asked = self._asked(rows, rate, context)
        written = self.rewriter(asked, context) if asked else []
        made = self._usable([each.problem for each in asked], written, rows, context) if asked else {}
        told = {"rewritten": float(len(made)), "rewrites_dropped": float(len(asked) - len(made))}
        kept = self._answered([asked[place] for place in made], list(made.values()), context) if made else []
        told["rewrites_kept"] = float(sum(int(each.group_index()[1]) for each in kept))
        rows = rows.replace(signal={**rows.signal, **{name: torch.full_like(rows.reward, value) for name, value in told.items()}})
        return context.join([rows, *kept]) if kept else rows

    def _success_rate(self, rows: Trajectories) -> Tensor:
        """The share of right answers in each row's group ``[N]``."""
        right = (rows.components.get("task", rows.reward) > self.success).float()
        return rows.group_stats(right).mean

    def _asked(self, rows: Trajectories, rate: Tensor, context: DataContext) -> list[Asked]:
        """The problems to rewrite, hard ones first."""
        first: dict[int, int] = {}
        size: dict[int, int] = {}
        for row, (name, counts) in enumerate(zip(rows.group.tolist(), rows.fresh().tolist(), strict=True)):
            if counts:
                first.setdefault(name, row)
                size[name] = size.get(name, 0) + 1
        hard, share = (rows.signal[HARD] > 0).tolist(), rate.tolist()
        wanted = {True: self.which in ("both", "hard"), False: self.which in ("both", "medium")}
        chosen = [
            (row, size[name]) for name, row in first.items() if wanted[hard[row]] and (hard[row] or share[row] <= self.medium)
        ]
        if not chosen:
            return []
        problems = context.problems(rows.take_rows(torch.tensor([row for row, _ in chosen], dtype=torch.int64)))
        found = [Asked(problem, hard[row], count) for problem, (row, count) in zip(problems, chosen, strict=True)]
        return sorted(found, key=lambda each: not each.simplify)

    def _usable(
        self, before: Sequence[Problem], written: Sequence[Problem | None], rows: Trajectories, context: DataContext
    ) -> dict[int, Problem]:
        """The rewrites that can be asked, by the place of the problem that each was made of."""
        seen = {problem.prompt for problem in context.problems(rows)}
        found: dict[int, Problem] = {}
        for place, (old, new) in enumerate(zip(before, written, strict=True)):
            if new is not None and new.prompt.strip() and new.prompt not in seen:
                seen.add(new.prompt)
                found[place] = descended(new, old, "rewriting")
        fitting = context.fits([problem.model_input for problem in found.values()])
        return {place: new for (place, new), fits in zip(found.items(), fitting, strict=True) if fits}

    def _answered(self, asked: Sequence[Asked], made: Sequence[Problem], context: DataContext) -> list[Trajectories]:
        """Answers to the rewrites, where some are right and some are not; those of hard problems first."""
        turns = [Turn(new.model_input, new, each.samples, role="rewritten") for each, new in zip(asked, made, strict=True)]
        rows = context.sample(turns)
        hard = torch.tensor([float(each.simplify) for each in asked for _ in range(each.samples)], device=rows.reward.device)
        rows, rate = rows.replace(signal={**rows.signal, HARD: hard}), self._success_rate(rows)
        keep = (rate > 0) & (rate < 1)
        return [rows.keep_rows(keep)] if bool(keep.any()) else []

    def metrics(self, rows: Trajectories) -> Metrics:
        if not rows.rows:
            return {}
        told = {name: float(rows.signal[name][0]) for name in ("rewritten", "rewrites_dropped", "rewrites_kept")}
        return {"hard_rows": float(rows.signal[HARD].mean()), **told}


def with_prompt(problem: Problem, prompt: str) -> Problem:
    """A problem asked in other words; of a conversation the last message is changed."""
    if not problem.messages:
        return replace(problem, prompt=prompt)
    messages = (*problem.messages[:-1], {**problem.messages[-1], "content": prompt})
    return replace(problem, prompt=readable(messages) if prompt else "", messages=messages)


def _unscored(problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
    """Rewrites are no answers."""
    return Scores([0.0] * len(responses), [False] * len(responses))
