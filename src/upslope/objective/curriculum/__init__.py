"""Curricula: which tasks next?"""

from upslope.objective.curriculum.uncertainty import ByUncertainty

__all__ = ["ByUncertainty"]
