"""What else is learned: what an answer is worth, or which of two is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Model
from upslope.objective.functional.contests import Contests
from upslope.objective.functional.last_decision import last_decision
from upslope.types import Batch


def last_output(batch: Batch, name: str) -> Tensor:
    """What a head says of each row ``[N]`` when it has read all of it: at the last decision, the token that ends an answer."""
    if batch.current is None or name not in batch.current.columns():
        raise MethodError(f"the score of an answer is the output of a head called {name!r}, which this batch does not have. Give "
                          f"the method one: models={{{name!r}: AnswerScore()}}.")  # fmt: skip
    return torch.where(last_decision(batch.sampled), batch.current[name], 0.0).sum(1)


@dataclass(frozen=True)
class AnswerScore(Model):
    r"""A head under the name ``score``, read when it has seen all of an answer: a reward model.

    What draws it to preferences is the surrogate. Its own loss holds the scores of a contest near zero, as a preference only speaks
    of their difference:

    .. math::  L = center\,(r_w + r_l)^2

    Fields:
        center: of that loss; 0 leaves it out, up to 0.01 is usual.
        lr_scale: the head's learning rate as a multiple of the trunk's. It begins untrained where the trunk does not.
    """

    scope = "group"
    text_only: ClassVar[bool] = True
    scores: ClassVar[Literal["", "answers", "pairs"]] = "answers"
    ranges: ClassVar = {"center": "[0, inf)", "lr_scale": "[0, inf)"}

    center: float = 0.0
    lr_scale: float = 1.0

    def needs(self) -> frozenset[str]:
        return frozenset({"current.score", "group"})

    def __call__(self, batch: Batch) -> Tensor:
        if not self.center:
            return torch.zeros_like(batch.sampled)
        contests, score = Contests.of(batch), last_output(batch, "score")
        total = contests.winners(score) + contests.losers(score)
        return contests.per_decision(self.center * total.square(), batch)


@dataclass(frozen=True)
class PairScore(AnswerScore):
    r"""The same head on rows that hold two answers, one behind the other: how far the first is better than the second.

    A row of the other order is subtracted, so that it cannot matter who stands first:
    :math:`P(a \succ b) = \sigma(s(x, a, b) - s(x, b, a))`.
    """

    scores: ClassVar[Literal["", "answers", "pairs"]] = "pairs"

    def needs(self) -> frozenset[str]:
        return super().needs() | {"label.order"}
