"""Which trajectories enter the update?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.filter.groups import DropConstantGroups

__all__ = [
    "DropConstantGroups",
]
