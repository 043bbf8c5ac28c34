"""Rewards that a method adds to the task's own.

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.reward.penalty import OverlongPenalty, StepKL

__all__ = [
    "OverlongPenalty",
    "StepKL",
]
