"""What an ensemble of critics says as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Networks
from upslope.types import Part


class Members(Part):
    """One value from those of the members: ``[E, ...] -> [...]``."""

    asked: ClassVar[int] = 0
    """Members that it looks at, from the first on; 0 is all."""

    def __call__(self, values: Tensor, nets: Networks) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class SmallestMember(Members):
    """The smallest value: who believes least is believed (clipped double Q-learning)."""

    def __call__(self, values: Tensor, nets: Networks) -> Tensor:
        return values.amin(0)


@dataclass(frozen=True)
class MeanOfMembers(Members):
    """The mean of all."""

    def __call__(self, values: Tensor, nets: Networks) -> Tensor:
        return values.mean(0)


@dataclass(frozen=True)
class FirstMember(Members):
    """The first member's value; the others only serve targets."""

    asked: ClassVar[int] = 1

    def __call__(self, values: Tensor, nets: Networks) -> Tensor:
        return values[0]


@dataclass(frozen=True)
class SmallestOfSome(Members):
    """The smallest of a few members that are drawn anew in each update (REDQ).

    Fields:
        some: how many are drawn. Fewer believe more.
    """

    ranges: ClassVar = {"some": "[1, inf)"}

    some: int = 2

    def __call__(self, values: Tensor, nets: Networks) -> Tensor:
        chosen = nets.uniform(values.new_empty(len(values)), "members").argsort()[: self.some]
        return values.index_select(0, chosen).amin(0)
