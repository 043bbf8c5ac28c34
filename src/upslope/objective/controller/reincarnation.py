"""A run in two lives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from upslope.errors import MethodError
from upslope.objective.base import Controller, State
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class Reincarnation(Controller):
    r"""Old rows and a loosening anchor first; then the reached policy becomes the start, and only fresh rows count (ReMix).

    .. math::  share(t) = \max\big(1 - drop\,\lceil\max(t - hold, 0) / every\rceil,\ floor\big) \text{ for } t \le until,
               \text{ then } 1

    Fields:
        until: the last step of the first life. Early switches lose speed, late ones suffer longer from old rows.
        hold: steps during which the start is the only anchor.
        every, drop: steps between two losses of its share, and how large they are.
        floor: its smallest share.
        share_knob, fraction_knob: the knobs that are moved.
    """

    until: int = 100
    hold: int = 50
    every: int = 10
    drop: float = 0.1
    floor: float = 0.5
    share_knob: str = "regularize.share"
    fraction_knob: str = "data.fraction"

    def __post_init__(self) -> None:
        if self.until < 0 or self.hold < 0 or self.every < 1:
            given = f"until={self.until}, hold={self.hold} and every={self.every}"
            raise MethodError(f"Reincarnation has {given}; these are steps, at least 0, 0 and 1.")
        if not 0 <= self.floor <= 1 or not self.drop >= 0:
            raise MethodError(f"Reincarnation has floor={self.floor} and drop={self.drop}; a share from 0 to 1, and at least 0.")

    def init(self) -> State:
        return {"steps": 0}

    def share(self, step: int) -> float:
        """The start's share in this step; the first is 1."""
        if step > self.until:
            return 1.0
        return max(1 - self.drop * math.ceil(max(step - self.hold, 0) / self.every), self.floor)

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        step = state["steps"] + 1
        return {self.share_knob: self.share(step)} | ({self.fraction_knob: 0.0} if step > self.until else {})

    def snapshots(self, state: State, progress: float) -> tuple[str, ...]:
        return ("start",) if state["steps"] == self.until else ()

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        return {"steps": state["steps"] + 1}
