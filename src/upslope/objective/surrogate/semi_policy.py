"""A given answer against one of an earlier policy, which is pushed away only where the policy has already got ahead of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from upslope.objective.base import Branch, Notes
from upslope.objective.functional.contests import Contests
from upslope.objective.surrogate.preference import PreferenceLoss, Unit, answer_score, contest_notes
from upslope.types import Batch


@dataclass(frozen=True)
class SemiPolicyPreference(PreferenceLoss):
    r"""The logistic loss of a given answer and one that the reference wrote, whose sign is decided for each pair (SePPO).

    .. math::  L = -\log\sigma\big(\beta\,(r_w - s\,r_l)\big), \qquad s = \begin{cases} +1 & r_w \ge 0\\ -1 & r_w < 0\end{cases}

    where r is an answer's log-ratio to the reference. Where the policy finds the given answer likelier than the reference does, the
    reference's own answer is a loser as in DPO; where it does not, the reference is the better model and its answer is learned too.

    Fields:
        beta: larger takes a small difference for a large one.
        flip: without it the reference's answer always loses: DPO against earlier policies (SPIN).
        unit: an answer's score: the ``"sum"`` over its tokens, or their ``"mean"``.
    """

    ranges: ClassVar = {"beta": "(0, inf)"}

    beta: float = 0.1
    flip: bool = True
    unit: Unit = "sum"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, contests = answer_score(batch, branches, self.unit), Contests.of(batch)
        winner, loser = contests.winners(score), contests.losers(score)
        behind = (winner.detach() < 0) & self.flip
        loss = -logsigmoid(self.beta * (winner - torch.where(behind, -loser, loser)))
        notes = contest_notes(batch, contests, winner - loser)
        return contests.per_decision(loss, batch), notes | {"learned_too": contests.per_winner(behind.to(loss.dtype))}
