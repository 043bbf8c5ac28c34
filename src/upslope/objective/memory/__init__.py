"""Memory: what is remembered over the steps and shared by several parts."""

from upslope.objective.memory.success import SuccessTracker

__all__ = ["SuccessTracker"]
