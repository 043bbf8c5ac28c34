"""Critics: what an action is worth, learned from stored experience; their targets, ensembles and penalties."""

from upslope.objective.critics.conservative import Conservative, PenaltyMultiplier
from upslope.objective.critics.members import FirstMember, MeanOfMembers, Members, SmallestMember, SmallestOfSome
from upslope.objective.critics.q_function import NoPenalty, Penalty, QFunction
from upslope.objective.critics.targets import BestChoice, BootstrapTarget, SmoothedAction, SoftValue, StateValue
from upslope.objective.critics.temperature import Temperature
from upslope.objective.critics.values import CautiousValue, ExpectileValue

__all__ = [
    "BestChoice",
    "BootstrapTarget",
    "CautiousValue",
    "Conservative",
    "ExpectileValue",
    "FirstMember",
    "MeanOfMembers",
    "Members",
    "NoPenalty",
    "Penalty",
    "PenaltyMultiplier",
    "QFunction",
    "SmallestMember",
    "SmallestOfSome",
    "SmoothedAction",
    "SoftValue",
    "StateValue",
    "Temperature",
]
