"""From a part of the policy to the whole of it."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.errors import MethodError
from upslope.objective.base import Controller, State


@dataclass(frozen=True)
class ThenWhole(Controller):
    """Gives the learner the whole policy after the first part of the run (BuPO): sets a layer to 0.

    Fields:
        after: share of the run's steps that learn inside. 0 is never, 1 always; too long a phase does harm.
        knob: the layer it sets.
    """

    after: float = 0.1
    knob: str = "policy.layer"

    def __post_init__(self) -> None:
        if not 0 <= self.after <= 1:
            raise MethodError(f"ThenWhole.after is {self.after:g}; it is a share of the run from 0 to 1.")

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        return {} if progress < self.after else {self.knob: 0}
