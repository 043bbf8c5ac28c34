"""The policy as it was a few steps ago."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.objective.base import Reference
from upslope.types import Policy


@dataclass(frozen=True)
class Snapshot(Reference):
    """The policy as it was before earlier updates: with ``every = 1`` before those of the last step, two copies in memory.

    On the day a copy is taken it is the policy itself and says nothing, so the one before it is compared with.

    Fields:
        every: steps between snapshots; the one compared with is between one and two of these old.
    """

    copies: ClassVar[int] = 2

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MethodError(f"Snapshot.every is {self.every}; it is a number of steps, at least 1.")

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        return policy.frozen_copy(), policy.frozen_copy()

    def due(self, step: int) -> bool:
        return step > 1 and (step - 1) % self.every == 0

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        return kept[1], policy.frozen_copy()
