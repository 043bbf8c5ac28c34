"""Challengers: an answer of an earlier policy beside each given one, to learn which of the two is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.errors import MethodError
from upslope.objective.base import Data, DataContext
from upslope.rollout.pairs import CHOSEN, REJECTED
from upslope.tasks.turns import Turn
from upslope.types import Trajectories

CHALLENGER = "challenger"
"""The role of who answers."""


@dataclass(frozen=True)
class Challengers(Data):
    """Lets a reference answer the problem of each given row, and puts the two into one contest: the given answer wins (SePPO).

    ``label["side"]`` is 1 for the given answers and -1 for the reference's.

    Fields:
        reference: who answers. A pool of snapshots gives another earlier policy in each step.
    """

    text_only: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset({"group", "label.side"})

    reference: str = "pool"

    def speakers(self) -> frozenset[str]:
        return frozenset({self.reference})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        if bool(rows.fresh().any()):
            raise MethodError("Challengers has given answers challenged, and some of these rows are the policy's own. Take "
                              "rollout=FromAnswers.")  # fmt: skip
        turns = [
            Turn(problem.model_input, problem, role=CHALLENGER, by=self.reference, group=group)
            for problem, group in zip(context.problems(rows), rows.group.tolist(), strict=True)
        ]
        return context.join([_on_side(rows, CHOSEN), _on_side(context.sample(turns), REJECTED)])


def _on_side(rows: Trajectories, side: int) -> Trajectories:
    return rows.replace(label={**rows.label, "side": torch.full_like(rows.group, side)})
