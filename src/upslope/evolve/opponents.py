"""Opponents: an answer of somebody else to compare each answer of the policy with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.errors import MethodError
from upslope.objective.base import Data, DataContext
from upslope.tasks.turns import POLICY, Mixture, Turn
from upslope.types import Trajectories

OPPONENT = "opponent"
"""The role of who answers."""


@dataclass(frozen=True)
class Opponents(Data):
    r"""Lets somebody else answer the problem of each row, and puts the two answers into a group of their own (Nash-MD).

    The opponent's tokens are drawn from the policy's and a reference's averaged logits,
    :math:`softmax((1 - share) \log\pi + share \log\pi_{reference})`. Whoever compares or scores groups then compares pairs. The
    opponent's row carries ``label["speaker"]``; with `OnlyFresh` among the filters nobody learns from it.

    Fields:
        reference: with whom the policy is mixed.
        share: of the reference's logits. 0 is self-play, an answer of the policy's own; 1 the reference alone. Between them the
            opponent changes more slowly than the policy, and so does what is best against it.
    """

    text_only: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset({"group"})
    ranges: ClassVar = {"share": "[0, 1]"}

    reference: str = "start"
    share: float = 0.5

    def speakers(self) -> frozenset[str]:
        return frozenset({self.reference}) if self.share else frozenset()

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        if not bool(rows.fresh().all()):
            raise MethodError("Opponents gives every row an opponent, and some of these rows are not this step's own. Put it "
                              "before the other data parts.")  # fmt: skip
        by: str | Mixture = {0.0: POLICY, 1.0: self.reference}.get(self.share, Mixture(self.reference, self.share))
        turns = [
            Turn(problem.model_input, problem, role=OPPONENT, by=by, group=number)
            for number, problem in enumerate(context.problems(rows))
        ]
        own = torch.arange(rows.rows, device=rows.group.device)
        return context.join([rows.replace(group=own), context.sample(turns)])
