"""Advantages, rescaled how?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.shape.whiten import Whiten

__all__ = [
    "Whiten",
]
