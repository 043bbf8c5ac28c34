"""Rollouts that sample where the learner is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from upslope.types import Assignment, RolloutRequest, Trajectories


class LocalRollout(ABC):
    """Samples when rows are taken, beside the learner: environments go on from where the last step left them, so that their rows
    cannot be handed out."""

    _requests: dict[tuple[int, int], RolloutRequest]

    def assign(self, request: RolloutRequest) -> list[Assignment]:
        """Remembers what is wanted; nothing is handed out."""
        self.__dict__.setdefault("_requests", {})[request.step, request.attempt] = request
        return []

    def assigned(self, step: int, attempt: int = 0) -> bool:
        return (step, attempt) in self.__dict__.get("_requests", {})

    def take(self, step: int, attempt: int = 0) -> Trajectories:
        """The rows of a step."""
        return self.rows_of(self._requests.pop((step, attempt)))

    @abstractmethod
    def rows_of(self, request: RolloutRequest) -> Trajectories:
        """Samples what is wanted."""
