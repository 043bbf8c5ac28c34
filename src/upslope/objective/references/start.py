"""The policy as the run began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.objective.base import Reference
from upslope.types import Policy


@dataclass(frozen=True)
class Start(Reference):
    """The policy as the run began; a controller may make the policy of a later step the start.

    A method that compares with ``start`` has it without naming it.
    """

    copies: ClassVar[int] = 1
    moves_copies: ClassVar[bool] = False

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        return (policy.frozen_copy() if start is None else start,)

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        return (policy.frozen_copy(),)
