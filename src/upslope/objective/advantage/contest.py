"""Who won: the rows of a group as winners (above zero), losers (below) and those who took no part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.objective.functional.contests import first_of_group, group_extreme
from upslope.types import Batch


@dataclass(frozen=True)
class Sides(Advantage):
    """The sides that rows were given (``label["side"]``): 1 for a chosen answer, -1 for a rejected one, 0 for neither."""

    def needs(self) -> frozenset[str]:
        return frozenset({"label.side"})

    def __call__(self, batch: Batch) -> Tensor:
        if "side" not in batch.label:
            raise MethodError("Sides reads which answers were chosen and which rejected, and these rows do not say. Take "
                              "rollout=FromPairs, or advantage=BestWorst for answers with a reward.")  # fmt: skip
        return batch.per_decision(batch.label["side"].to(batch.sampled.dtype))


@dataclass(frozen=True)
class BestWorst(Advantage):
    """The answer of each group that earned most wins, the one that earned least loses, the others take no part.

    Of several equally good the first counts. A group whose answers all earned the same has neither winner nor loser.

    Fields:
        losers: every answer that earned less than the best loses, not only the worst.
    """

    losers: bool = False

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        there = batch.lengths() > 0
        best, worst = first_of_group(batch, batch.reward, there, "amax"), first_of_group(batch, batch.reward, there, "amin")
        top = group_extreme(batch, batch.reward, there, "amax")
        undecided = top == group_extreme(batch, batch.reward, there, "amin")
        lost = there & (batch.reward < top) if self.losers else worst
        sides = best.to(batch.sampled.dtype) - lost.to(batch.sampled.dtype)
        return batch.per_decision(torch.where(undecided, 0.0, sides))
