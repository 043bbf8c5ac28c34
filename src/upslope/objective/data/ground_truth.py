"""A known right answer among the sampled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.objective.base import Data, DataContext
from upslope.types import Source, Trajectories, decision_keys


@dataclass(frozen=True)
class GroundTruth(Data):
    """Joins the reference answer of its task to each group (TempSamp-R1), scored like the others.

    Nobody sampled it: its ``behavior`` is NaN, its label ``source`` says so, and a ratio to the proximal policy takes it as the
    policy's own. A group of G samples becomes one of G + 1.
    """

    text_only: ClassVar[bool] = True
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"answers"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        return joined(rows, keyed(rows, context.teacher(rows)), context)


def keyed(rows: Trajectories, taught: Trajectories) -> Trajectories:
    """Reference answers with keys of their own, from those of their groups."""
    if rows.key is None:
        return taught
    first = [int((rows.group == name).nonzero()[0]) for name in taught.group]
    # The group's first row names the decisions of the reference too; one more step sets them apart from its own.
    return taught.replace(key=decision_keys(rows.key[first, 0] + 1, taught.sampled.shape[1]))


def joined(rows: Trajectories, taught: Trajectories, context: DataContext) -> Trajectories:
    """The rows with reference answers as further ones of their groups."""
    source = torch.full_like(rows.group, int(Source.FRESH))
    return context.join([rows.replace(label={"source": source, **rows.label}), taught])
