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
    updates leaves the newest copy at once, and may compare with that; so may whoever fits the policy to a target over several
    steps (``every`` of them), measured from where it began: the previous iterate of SPPO and INPO.

    Fields:
        every: steps between snapshots.
        age: which of them may be compared with. The ``older`` are at least one of these spans old, and the copy taken last is kept
            only for later; with ``newest`` that one counts too, the policy as the last span ended.
        keep: copies that may be compared with. More than one is a pool, which fills as snapshots are taken; each costs the memory
            of what is trained.
        choose: which of the pool a step compares with: the ``newest``, or one at ``random``, drawn anew for each step.
    """

    moves_copies: ClassVar[bool] = False

    every: int = 1
    age: Literal["older", "newest"] = "older"
    keep: int = 1
    choose: Literal["newest", "random"] = "newest"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MethodError(f"Snapshot.every is {self.every}; it is a number of steps, at least 1.")
        if self.keep < 1:
            raise MethodError(f"Snapshot.keep is {self.keep}; it is a number of copies, at least 1.")

    @property
    def copies(self) -> int:
        return self.keep + (self.age == "older")

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        return tuple(policy.frozen_copy() for _ in range(1 if self.age == "newest" else 2))

    def due(self, step: int) -> bool:
        return step > 1 and (step - 1) % self.every == 0

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        return (*kept, policy.frozen_copy())[-self.copies :]

    def shown(self, kept: tuple[Policy, ...], uniform: float) -> tuple[Policy, ...]:
        pool = kept[:-1] if self.age == "older" else kept
        return (pool[int(uniform * len(pool))],) if self.choose == "random" else pool[-1:]
