"""Compared with whom?"""

from __future__ import annotations

from dataclasses import dataclass

from upslope.errors import MethodError
from upslope.objective.base import Reference


@dataclass(frozen=True)
class Snapshot(Reference):
    """The policy as it was before earlier updates: with ``every = 1`` before those of the last step, two copies in memory.

    Fields:
        every: steps between snapshots; the one compared with is between one and two of these old.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MethodError(f"Snapshot.every is {self.every}; it is a number of steps, at least 1.")
