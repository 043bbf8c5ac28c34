"""Which rows of a group take part in a contest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from upslope.objective.base import Filter
from upslope.objective.functional.contests import Contests, first_of_group, group_extreme
from upslope.types import Batch


@dataclass(frozen=True)
class Decided(Filter):
    """Keeps the winners and losers of contests that have both, so that means are over contests. A tie is dropped."""

    late = True
    refill = False
    rounds = 1

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        contests = Contests.of(batch)
        return contests.won | contests.lost


@dataclass(frozen=True)
class BestAndWorst(Filter):
    """Keeps of each group the answer that earned most and the one that earned least; none where all earned the same (SPPO)."""

    late = True
    refill = False
    rounds = 1

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        there = batch.lengths() > 0
        chosen = first_of_group(batch, batch.reward, there, "amax") | first_of_group(batch, batch.reward, there, "amin")
        top, bottom = group_extreme(batch, batch.reward, there, "amax"), group_extreme(batch, batch.reward, there, "amin")
        return chosen & (top > bottom)
