"""Better than what?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.advantage.baseline import GroupBaseline, MovingBaseline, RawReward
from upslope.objective.advantage.gae import GAE, paid

__all__ = [
    "GAE",
    "GroupBaseline",
    "MovingBaseline",
    "RawReward",
    "paid",
]
