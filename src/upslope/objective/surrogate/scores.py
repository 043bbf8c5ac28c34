"""The loss of reward models: the winner of a contest should score above its losers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes
from upslope.objective.functional.contests import Contests
from upslope.objective.surrogate.preference import PreferenceLoss, SigmoidPreference, answer_score
from upslope.types import Batch


@dataclass(frozen=True)
class ScorePreference(PreferenceLoss):
    r"""The negative log-likelihood of the verdicts under Bradley and Terry's model of the scores.

    .. math::  L = -\log\sigma(r_w - r_l - margin)

    A contest whose winner has an advantage c below 1 is won with chance (1 + c)/2, and the loss is the expected one.

    Fields:
        margin: by how much the winner should lead before the loss counts it as even.
        label_smoothing: chance that a verdict is wrong; scores of clear pairs then stop at a finite distance.
        losers: several losers count by the ``"mean"`` of their scores, or by ``"softmax"``: the chance that the winner beats them
            all (Plackett and Luce).
    """

    ranges: ClassVar = {"label_smoothing": "[0, 0.5]"}

    margin: float = 0.0
    label_smoothing: float = 0.0
    losers: Literal["mean", "softmax"] = "mean"

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("score",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        same = SigmoidPreference(1.0, self.label_smoothing, "sum", self.margin, self.losers)
        loss, notes = same(batch, branches)
        score, contests = answer_score(batch, branches, "sum").detach(), Contests.of(batch)
        # How likely the trunk would be to write the answers says nothing here: nobody will sample from it.
        return loss, {
            "margin": notes["margin"],
            "preferred": notes["preferred"],
            "score_chosen": torch.where(contests.won, score, torch.nan),
            "score_rejected": torch.where(contests.lost, score, torch.nan),
        }
