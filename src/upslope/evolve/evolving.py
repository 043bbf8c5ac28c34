"""Evolving: new problems are made from those that a step learned most from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from upslope.errors import MethodError, did_you_mean
from upslope.evolve.pool import ProblemPool, can_be_kept, race
from upslope.objective.base import Data, DataContext
from upslope.tasks.text import Problem, TextTask
from upslope.types import Metrics, Trajectories

OPERATORS = ("harder", "alike", "easier", "same")
ANCESTORS = 8
"""Ancestors that a problem remembers, the nearest first."""


@dataclass(frozen=True)
class Evolve(Data):
    """Makes variants of some of the step's problems and leaves them in ``made``, for a pool to keep (eva).

    A variant that the task cannot make, that is another problem of the step or one made before it, or whose prompt leaves no
    room for an answer is dropped and counted. What is made says in its ``info`` which problems it comes from (``made_from``, the
    nearest first), how (``made_by``) and how many steps it is from one of the task's own (``generation``).

    Fields:
        memory: the pool, which says how much there is to learn from a problem.
        picked: share of the step's problems that variants are made of.
        pick: those are drawn by how ``"informative"`` they are, without replacement, one from which nothing can be learned only if
            that is so of all; or ``"uniform"``.
        variants: of each. More follow a good problem further in one step.
        operators: how, in turn: ``"harder"``, ``"alike"`` and ``"easier"`` as the task makes them, ``"same"`` keeps the problem
            itself.
    """

    text_only: ClassVar[bool] = True
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"variants"})
    ranges: ClassVar = {"picked": "[0, 1]", "variants": "[0, inf)"}

    memory: str = "pool"
    picked: float = 0.25
    pick: Literal["informative", "uniform"] = "informative"
    variants: int = 4
    operators: tuple[str, ...] = ("harder", "alike")

    def __post_init__(self) -> None:
        for name in self.operators:
            if name not in OPERATORS:
                near = did_you_mean(name, OPERATORS)
                raise MethodError(f"Evolve.operators names {name!r}.{near} There are {', '.join(OPERATORS)}.")
        if not self.operators:
            raise MethodError("Evolve.operators is empty; name at least one way to make a variant, as in ('harder',).")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        rng = context.rng()
        tasks, info = self._pool(rows).measured(rows.take_rows(rows.fresh()))
        first = {task: row for row, task in reversed(list(enumerate(rows.task.tolist())))}
        problems = context.problems(rows.take_rows(torch.tensor([first[task] for task in tasks.tolist()], dtype=torch.int64)))
        made, dropped = self._made([problems[place] for place in self._picked(info, rng)], problems, context, rng)
        left = torch.full_like(rows.reward, float(dropped))
        return rows.replace(made=[*rows.made, *made], signal={**rows.signal, "made_dropped": left})

    def _pool(self, rows: Trajectories) -> ProblemPool:
        pool = rows.memory.get(self.memory)
        if not isinstance(pool, ProblemPool):
            raise MethodError(
                f"Evolve.memory is {self.memory!r}, and it must name a pool of problems: --set memory.{self.memory}=ProblemPool."
            )
        return pool

    def _picked(self, info: Tensor, rng: np.random.Generator) -> list[int]:
        """Places of the problems that variants are made of."""
        wanted = round(self.picked * len(info))
        uniform = torch.from_numpy(rng.random(len(info)))
        if self.pick == "uniform" or not bool(info.any()):
            info = torch.ones_like(info)
        return race(info, uniform, min(wanted, int((info > 0).sum()))).tolist()

    def _made(
        self, parents: Sequence[Problem], step: Sequence[Problem], context: DataContext, rng: np.random.Generator
    ) -> tuple[list[Problem], int]:
        """The variants of these problems, and how many more came to nothing."""
        found: list[Problem] = []
        asked, taken, dropped = {problem.prompt for problem in step}, set[str](), 0
        for parent in parents:
            for number in range(self.variants):
                how = self.operators[number % len(self.operators)]
                made = self._variant(context.task, parent, how, rng)
                known = made is not None and (made.prompt in taken or (how != "same" and made.prompt in asked))
                if made is None or known or not can_be_kept(made):
                    dropped += 1
                    continue
                taken.add(made.prompt)
                found.append(made)
        fitting = context.fits([problem.model_input for problem in found])
        kept = [problem for problem, fits in zip(found, fitting, strict=True) if fits]
        return kept, dropped + len(found) - len(kept)

    def _variant(self, task: TextTask, parent: Problem, how: str, rng: np.random.Generator) -> Problem | None:
        if how == "same":
            return parent
        made: Problem | None = getattr(task, how)(parent, rng)
        return None if made is None else descended(made, parent, how)

    def metrics(self, rows: Trajectories) -> Metrics:
        told = {"made": float(len(rows.made)), "made_dropped": float(rows.signal["made_dropped"][0]) if rows.rows else 0.0}
        if generations := [float(problem.info.get("generation", 0)) for problem in rows.made]:
            told["made_generation"] = sum(generations) / len(generations)
        return told


def descended(made: Problem, parent: Problem, how: str) -> Problem:
    """A problem that says what it was made from, and how."""
    before = tuple(parent.info.get("made_from", ()))
    told = {
        "made_from": [parent.prompt, *before][:ANCESTORS],
        "made_by": how,
        "generation": int(parent.info.get("generation", 0)) + 1,
    }
    return replace(made, info={**made.info, **told})
