"""References: with whom is the policy compared?"""

from upslope.objective.references.blinded import Blinded
from upslope.objective.references.moving_average import MovingAverage
from upslope.objective.references.snapshot import Snapshot
from upslope.objective.references.start import Start

__all__ = ["Blinded", "MovingAverage", "Snapshot", "Start"]
