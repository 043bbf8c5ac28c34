"""Training stages: what a run does before a method itself, in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upslope.types.part import Part
from upslope.types.slots import RolloutPlan

if TYPE_CHECKING:
    from upslope.types.method import Method


class TrainingStage(Part):
    """A phase of a run before the method itself, with a rollout and a loss of its own: what a method's ``stages`` hold."""

    scope = "step"
    name: str
    share: float
    """Of the run's steps, those in which it learns."""
    rollout: RolloutPlan
    lr_scale: float
    """What the run's learning rate is multiplied with in this stage."""
    fresh_optimizer: bool
    """Whether what follows begins without the moments that the optimiser gathered up to then."""

    def as_method(self, of: Method) -> Method:
        """The method that learns in this stage."""
        raise NotImplementedError
