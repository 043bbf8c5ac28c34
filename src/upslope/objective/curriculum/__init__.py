"""Curricula: which tasks next, and how many answers to each?"""

from upslope.objective.curriculum.category import ByCategory
from upslope.objective.curriculum.knapsack import Knapsack
from upslope.objective.curriculum.pools import Pools, PoolStage
from upslope.objective.curriculum.posterior import ByPosterior
from upslope.objective.curriculum.prompt_value import ByPromptValue
from upslope.objective.curriculum.uncertainty import ByUncertainty

__all__ = ["ByCategory", "ByPosterior", "ByPromptValue", "ByUncertainty", "Knapsack", "PoolStage", "Pools"]
