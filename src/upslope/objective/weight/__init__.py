"""Which decisions matter?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.weight.selection import TopEntropy

__all__ = [
    "TopEntropy",
]
