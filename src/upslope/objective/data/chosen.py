"""The chosen answers of given pairs, to be learned as they are."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.objective.base import Data, DataContext
from upslope.types import Trajectories


@dataclass(frozen=True)
class ChosenAside(Data):
    """Puts a copy of the chosen answers aside as ``chosen``, for a term that imitates them beside the loss of their contests.

    A loss of differences may lower the likelihood of both sides of a pair; a term on these rows holds that of the chosen one up.
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"label.side"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        chosen = rows.take_rows((rows.label["side"] > 0).nonzero().squeeze(1)).replace(info=[], aside={})
        return rows.replace(aside={**rows.aside, "chosen": chosen})
