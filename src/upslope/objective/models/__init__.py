"""Models: what else is learned beside the policy, as outputs on its trunk."""

from upslope.objective.models.finished import FinishedValue
from upslope.objective.models.median import MedianFunction
from upslope.objective.models.pessimistic import PessimisticValue
from upslope.objective.models.value import ValueFunction

__all__ = ["FinishedValue", "MedianFunction", "PessimisticValue", "ValueFunction"]
