"""Which rows of a group take part in a contest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from upslope.errors import MethodError
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
    """Keeps of each group the answers of highest and of lowest advantage; none where all are alike (SPPO)."""

    late = True
    refill = False
    rounds = 1

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("BestAndWorst compares advantages, and this batch has none yet.")
        there, value = batch.lengths() > 0, batch.row_mean(batch.advantage)
        chosen = first_of_group(batch, value, there, "amax") | first_of_group(batch, value, there, "amin")
        return chosen & (group_extreme(batch, value, there, "amax") > group_extreme(batch, value, there, "amin"))
