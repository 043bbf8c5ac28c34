"""The policy as it was a few steps ago."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from upslope.errors import MethodError
from upslope.objective.base import Reference
from upslope.types import Policy


@dataclass(frozen=True)
class Snapshot(Reference):
    """The policy as it was before earlier updates: with ``every = 1`` before those of the last step, two copies in memory.

    On the day a copy is taken it is the policy itself and says nothing, so the one before it is compared with. A step of many
    updates leaves the newest copy at once, and may compare with that.

    Fields:
        every: steps between snapshots.
        age: which of them is compared with. The ``older`` is between one and two of these spans old; the ``newest`` is the policy
            as the last span ended, and the only copy that is kept.
    """

    copies: ClassVar[int] = 2

    every: int = 1
    age: Literal["older", "newest"] = "older"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MethodError(f"Snapshot.every is {self.every}; it is a number of steps, at least 1.")

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        return tuple(policy.frozen_copy() for _ in range(1 if self.age == "newest" else 2))

    def due(self, step: int) -> bool:
        return step > 1 and (step - 1) % self.every == 0

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        return (*kept[1:], policy.frozen_copy())
