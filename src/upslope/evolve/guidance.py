"""Guidance: where the policy fails, or always, it is asked again with help in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.evolve.hints import Hints, SolutionPrefix
from upslope.objective.base import Data, DataContext
from upslope.tasks.text import Problem
from upslope.tasks.turns import Turn
from upslope.types import Metrics, Trajectories

GUIDED = "guided"
"""Name of the rows put aside, for a term of their own."""


class _Group(NamedTuple):
    """A group that is to be helped."""

    name: int
    first: int
    """Its first row."""
    size: int
    problem: Problem
    hints: tuple[str, ...]


class _Found(NamedTuple):
    """Guided answers of a group, and what came of them."""

    rows: Trajectories
    level: int
    """Of the hint, from 1."""
    worked: bool


@dataclass(frozen=True)
class Guidance(Data):
    """Asks problems again with a hint in the prompt, and lets the group learn from those answers.

    What they take the place of stays among the rows with ``signal["replaced"]`` set, for memories and metrics; the filter
    `Replaced` keeps it from being learned. ``signal["hint_level"]`` and ``signal["hint_worked"]`` say how a row's group was helped.

    Fields:
        hints: the help there is, from the weakest to the strongest.
        trigger: help groups that ``"failed"``, no answer having earned more than ``success``, or ``"always"``.
        replace: ``"all"``: the group is sampled anew with ever stronger hints until one answer is right, and the last answers take
            the place of the first (GHPO). ``"one"``: one answer with each hint; of those that are right the one with the weakest
            hint takes the place of the group's first answer (Scaf-GRPO). ``"none"``: answers with the strongest hint are added.
        learn: in which context guided answers are learned: with the hint, as they were ``"asked"``, or the plain ``"problem"``.
        samples: guided answers to a problem where none is replaced; 0: as many as its group has. More are compared better.
        aside: whether added answers stand aside, as ``guided``, for a term of their own, and only those that are right.
        begin: share of the run's steps after which it begins; 1 is never.
        success: a reward above it counts as success.
    """

    text_only: ClassVar[bool] = True
    judges_by: ClassVar[str] = "success"
    ranges: ClassVar = {"samples": "[0, inf)", "begin": "[0, 1]", "success": "(-inf, inf)"}

    hints: Hints = field(default_factory=SolutionPrefix)
    trigger: Literal["failed", "always"] = "failed"
    replace: Literal["all", "one", "none"] = "all"
    learn: Literal["asked", "problem"] = "asked"
    samples: int = 0
    aside: bool = False
    begin: float = 0.0
    success: float = 0.0

    def __post_init__(self) -> None:
        if self.aside and self.replace != "none":
            raise MethodError(f"Guidance puts answers aside and replaces {self.replace!r} of the group's; it is one or the other.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        groups = self._to_help(rows, context) if rows.progress >= self.begin < 1 else []
        if not groups:
            return _told(rows, {}, torch.zeros_like(rows.reward))
        ask = {"all": self._climb, "one": self._weakest, "none": self._strongest}[self.replace]
        found = ask(groups, context)
        replaced = torch.zeros_like(rows.reward)
        for group in groups:
            if group.name in found and self.replace == "all":
                replaced[(rows.group == group.name) & rows.fresh()] = 1.0
            elif group.name in found and self.replace == "one" and found[group.name].worked:
                replaced[group.first] = 1.0
        rows = _told(rows, found, replaced)
        further = [self._noted(each) for each in found.values() if self.replace != "one" or each.worked]
        return self._added(rows, further, context) if further else rows

    def _to_help(self, rows: Trajectories, context: DataContext) -> list[_Group]:
        """The groups that are helped, in the order of their first rows; those there is no hint for are not."""
        fresh, paid = rows.fresh(), rows.components.get("task", rows.reward)
        members: dict[int, list[int]] = {}
        for row, (name, counts) in enumerate(zip(rows.group.tolist(), fresh.tolist(), strict=True)):
            if counts:
                members.setdefault(name, []).append(row)
        helped = [
            (name, own) for name, own in members.items() if self.trigger == "always" or not bool((paid[own] > self.success).any())
        ]
        problems = context.problems(rows.take_rows(torch.tensor([own[0] for _, own in helped], dtype=torch.int64)))
        groups = [
            _Group(name, own[0], len(own), problem, self.hints(context.task, problem))
            for (name, own), problem in zip(helped, problems, strict=True)
        ]
        return [group for group in groups if group.hints]

    def _turn(self, group: _Group, level: int, samples: int, context: DataContext) -> Turn:
        prompt = self.hints.prompt(context.task, group.problem, group.hints[level])
        return Turn(prompt, group.problem, samples, group.name, self.learn)

    def _right(self, rows: Trajectories) -> Tensor:
        return rows.components.get("task", rows.reward) > self.success

    def _climb(self, groups: Sequence[_Group], context: DataContext) -> dict[int, _Found]:
        """Whole groups anew, with stronger hints as long as all answers fail."""
        found: dict[int, _Found] = {}
        waiting = list(groups)
        for level in range(max(len(group.hints) for group in groups)):
            waiting = [group for group in waiting if level < len(group.hints)]
            if not waiting:
                break
            rows = context.sample([self._turn(group, level, group.size, context) for group in waiting])
            for group in waiting:
                own = rows.keep_rows(rows.group == group.name)
                found[group.name] = _Found(own, level + 1, bool(self._right(own).any()))
            waiting = [group for group in waiting if not found[group.name].worked]
        return found

    def _weakest(self, groups: Sequence[_Group], context: DataContext) -> dict[int, _Found]:
        """Of one answer with each hint, the first that is right; where none is, the last."""
        turns = [self._turn(group, level, 1, context) for group in groups for level in range(len(group.hints))]
        rows, found, begin = context.sample(turns), {}, 0
        right = self._right(rows).tolist()
        for group in groups:
            levels = range(begin, begin + len(group.hints))
            chosen = next((row for row in levels if right[row]), levels[-1])
            one = torch.zeros(rows.rows, dtype=torch.bool, device=rows.group.device)
            one[chosen] = True
            found[group.name] = _Found(rows.keep_rows(one), chosen - begin + 1, right[chosen])
            begin += len(group.hints)
        return found

    def _strongest(self, groups: Sequence[_Group], context: DataContext) -> dict[int, _Found]:
        """Answers with the strongest hint."""
        turns = [self._turn(group, len(group.hints) - 1, self.samples or group.size, context) for group in groups]
        rows, found = context.sample(turns), {}
        for group in groups:
            own = rows.keep_rows(rows.group == group.name)
            found[group.name] = _Found(own, len(group.hints), bool(self._right(own).any()))
        return found

    def _noted(self, found: _Found) -> Trajectories:
        """Guided rows with what is known of their hint."""
        rows = found.rows
        level = torch.full_like(rows.reward, found.level)
        notes = [{**note, "hint_level": found.level} for note in rows.info]
        return rows.replace(signal={**rows.signal, "hint_level": level, "hint_worked": self._right(rows).to(level)}, info=notes)

    def _added(self, rows: Trajectories, further: list[Trajectories], context: DataContext) -> Trajectories:
        if not self.aside:
            return context.join([rows, *further])
        right = [each.keep_rows(self._right(each)) for each in further]
        right = [each for each in right if each.rows]
        return rows.replace(aside={**rows.aside, GUIDED: context.join(right)}) if right else rows

    def metrics(self, rows: Trajectories) -> Metrics:
        level, worked = rows.signal["hint_level"], rows.signal["hint_worked"]
        index, groups = rows.group_index()
        helped = torch.zeros(groups, device=level.device).index_fill_(0, index[level > 0], 1.0)
        told = {"guided_groups": float(helped.mean())}
        if bool((level > 0).any()):
            told |= {"hint_worked": float(worked[level > 0].mean()), "hint_level": float(level[level > 0].mean())}
        return told


def _told(rows: Trajectories, found: dict[int, _Found], replaced: Tensor) -> Trajectories:
    """The rows with how their groups were helped."""
    names = rows.group.tolist()
    level = torch.tensor([float(found[name].level) if name in found else 0.0 for name in names], device=rows.reward.device)
    worked = torch.tensor([float(found[name].worked) if name in found else 0.0 for name in names], device=rows.reward.device)
    signal = {**rows.signal, "replaced": replaced, "hint_level": level, "hint_worked": worked}
    notes = [
        {**note, **({"guided": found[name].level} if name in found else {})} for note, name in zip(rows.info, names, strict=False)
    ]
    return rows.replace(signal=signal, info=notes)
