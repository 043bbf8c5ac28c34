"""Which tasks next? Those of the stage that the run is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Curriculum
from upslope.types import Offer, Order
from upslope.types.part import Part


@dataclass(frozen=True)
class PoolStage(Part):
    """A stage of a run: which tasks it draws, and how long answers may be.

    Fields:
        until: the share of the run's steps at which it ends.
        category: only tasks of this category; empty: of all.
        limit: tokens an answer may have; 0, or more than the run allows: as the run has it.
        below: only tasks whose answers were last right at most this often; 1: all. Those never asked are always in.
    """

    scope = "step"
    ranges: ClassVar = {"until": "(0, 1]", "limit": "[0, inf)", "below": "[0, 1]"}

    until: float = 1.0
    category: str = ""
    limit: int = 0
    below: float = 1.0


@dataclass(frozen=True)
class Pools(Curriculum):
    """Stages one after the other, each with its pool of tasks and its token limit (AceReason).

    Where too few candidates belong to the stage, others take the places that are left: of its category first.

    Fields:
        memory: what says how a task went the last time (`LastSuccess`), for stages that leave out what is solved.
        candidates: tasks drawn for each one taken. A stage whose pool is a share of all tasks needs the inverse of that share.
        stages: in the order of ``until``; the last ends with the run.
    """

    ranges: ClassVar = {"candidates": "[1, inf)"}

    memory: str = "rate"
    candidates: int = 4
    stages: tuple[PoolStage, ...] = (PoolStage(),)

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        if not ends or ends != sorted(set(ends)) or ends[-1] != 1:
            shown = ", ".join(f"{end:g}" for end in ends) or "none"
            raise MethodError(f"the stages of Pools end at {shown}; each ends behind the one before it, and the last at 1.")

    def __call__(self, offer: Offer) -> Order:
        if offer.progress == 0 and offer.attempt == 0:
            self._check_categories(offer)
        number = next(place for place, stage in enumerate(self.stages) if offer.progress < stage.until or stage.until == 1)
        stage = self.stages[number]
        of_category = _of_category(offer, stage.category)
        fits = of_category
        if stage.below < 1:
            rate = offer.recall(self.memory)
            fits = of_category & ~(rate > stage.below)  # NaN, never asked, is not above
        chosen = torch.argsort(2 - of_category.long() - fits.long(), stable=True)[: offer.wanted].sort().values
        outside = 1 - float(fits[chosen].double().mean())
        return Order(chosen, limit=stage.limit, metrics={"stage": float(number + 1), "outside_stage": outside})

    def _check_categories(self, offer: Offer) -> None:
        for number, stage in enumerate(self.stages, 1):
            if not bool(_of_category(offer, stage.category).any()):
                there = ", ".join(repr(name) for name in sorted(offer.names.values()) if name)[:200]
                raise MethodError(
                    f"stage {number} of the curriculum takes tasks of the category {stage.category!r}, and of {len(offer)} drawn "
                    f"none is; they are of {there or 'no category'}. Give another category, or more curriculum.candidates."
                )


def _of_category(offer: Offer, name: str) -> Tensor:
    """Which tasks ``[M]`` are of a category; all for an empty name."""
    return torch.ones(len(offer), dtype=torch.bool) if not name else offer.category == offer.number(name)
