"""Where assignments are fulfilled: here, or by a pool of workers. A rollout does not know which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.types import Assignment, Metrics, Trajectories


@dataclass(frozen=True, eq=False)
class Fulfilled:
    """What came of an assignment.

    Fields:
        told: What the rollout that sampled them has to say beside the rows, for the one that asked.
        version: Of the weights that sampled them.
    """

    rows: Trajectories
    told: JsonDict = field(default_factory=dict)
    version: int = 0


class Pool(Protocol):
    """Fulfils assignments, each at least once; whoever answers second is ignored."""

    def publish(self, version: int, weights: Callable[[], dict[str, Tensor]]) -> None:
        """The policy's weights have this version from now on."""

    def give(self, assignments: Sequence[Assignment]) -> None:
        """Takes assignments, in the order in which they will be wanted."""

    def result(self, assignment: Assignment) -> Fulfilled:
        """What came of one, once it is there. It can be asked for again until it is forgotten."""

    def forget(self, assignment: Assignment) -> None:
        """Nobody will ask for it again."""

    def metrics(self) -> Metrics:
        """Of what was done since the last call."""


class Here:
    """Fulfils each assignment in this process, as soon as it is given: with the weights as they are then."""

    def __init__(self, fulfil: Callable[[Assignment], Fulfilled]):
        self._fulfil = fulfil
        self._done: dict[tuple[int, int, int], Fulfilled] = {}

    def publish(self, version: int, weights: Callable[[], dict[str, Tensor]]) -> None:
        """The policy itself samples."""

    def give(self, assignments: Sequence[Assignment]) -> None:
        for each in assignments:
            self._done[each.key] = self._fulfil(each)

    def result(self, assignment: Assignment) -> Fulfilled:
        return self._done[assignment.key]

    def forget(self, assignment: Assignment) -> None:
        self._done.pop(assignment.key, None)

    def metrics(self) -> Metrics:
        return {}
