"""Vine rollouts: an answer is written, and from some of its states others branch off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from upslope.errors import MethodError, UserError
from upslope.objective.base import RolloutPlan
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import join_text, sampled_ids, sampled_rows
from upslope.runtime.seeding import uniforms
from upslope.types import Assignment, Trajectories


@dataclass(frozen=True)
class Vine(RolloutPlan):
    """One answer to each problem, and ``--samples-per-task`` continuations from each of some states along it (Poly-PPO).

    A continuation's row has what stands before it in the prompt; those of one state are a group, and the first answer is a group
    of its own. A step samples ``1 + points * samples_per_task`` answers to a problem.

    Fields:
        points: states that are branched from, evenly spaced from the beginning of the answer on. 1 branches from the beginning
            alone: plain groups. More asks for different continuations later on, too.
    """

    provides: ClassVar[frozenset[str]] = TextRollout.provides

    points: int = 2

    def __post_init__(self) -> None:
        if self.points < 1:
            raise MethodError(f"Vine.points is {self.points}; a vine branches from at least one state.")

    def build(self, task: object, policy: object, **sizes: Any) -> VineRollout:
        return VineRollout(task, policy, points=self.points, **sizes)


class VineRollout(TextRollout):
    """Samples the vines of a number of problems. Nothing is carried from step to step."""

    def __init__(self, *arguments: Any, points: int, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.points = points

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """The first answers, then the branches, problem by problem and point by point."""
        problems, first_group = self.problems_of(assignment), assignment.first_group
        if set(assignment.samples) != {self.samples} or self.sampling_of(assignment) != self.sampling:
            raise UserError(
                "vines branch alike from every problem, and this curriculum wants other numbers of answers, another token limit or "
                "another temperature; take the curriculum or rollout=Vine away."
            )
        limit, count, branches_each = self.sampling.max_tokens, len(problems), self.points * self.samples
        where = assignment.step, assignment.attempt
        prompts = self.policy.encode_all([problem.model_input for problem in problems])
        numbers = uniforms((assignment.problems, limit), self.seed, "tokens", *where)[assignment.first :][:count]
        stems = self.engine.generate(prompts, 1, self.sampling, numbers)
        written = sampled_ids(stems)
        rows = sampled_rows(self.policy, prompts, 1, stems, self.sampling).replace(group=torch.arange(count) + first_group)
        first = self.scored(rows, problems, written, stems.finish)

        states = [
            (number, ids[: point * len(ids) // self.points]) for number, ids in enumerate(written) for point in range(self.points)
        ]
        contexts = [prompts[number] + begun for number, begun in states]
        numbers = uniforms((assignment.problems * branches_each, limit), self.seed, "branches", *where)
        numbers = numbers[assignment.first * branches_each :][: count * branches_each]
        limits = [limit - len(begun) for _, begun in states]
        branches = self.engine.generate(contexts, self.samples, self.sampling, numbers, limits)
        group = (torch.arange(len(states)) + count).repeat_interleave(self.samples) + first_group
        rows = sampled_rows(self.policy, contexts, self.samples, branches, self.sampling).replace(group=group)
        owners = [state for state in states for _ in range(self.samples)]
        answers = [begun + ids for (_, begun), ids in zip(owners, sampled_ids(branches), strict=True)]
        return join_text([first, self.scored(rows, [problems[number] for number, _ in owners], answers, branches.finish)])
