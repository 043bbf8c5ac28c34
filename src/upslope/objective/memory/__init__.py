"""Memory: what is remembered over the steps and shared by several parts."""

from upslope.objective.memory.category import CategoryGain
from upslope.objective.memory.last_success import LastSuccess
from upslope.objective.memory.posterior import BetaPosterior
from upslope.objective.memory.success import SuccessTracker

__all__ = ["BetaPosterior", "CategoryGain", "LastSuccess", "SuccessTracker"]
