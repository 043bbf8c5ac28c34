"""Which further terms?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.regularize.kl import EntropyBonus, Estimator, ReferenceKL, kl_estimate

__all__ = [
    "EntropyBonus",
    "Estimator",
    "ReferenceKL",
    "kl_estimate",
]
