"""Which knob moves during the run, on which signal?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.controller.kl import AdaptiveKL, TargetKL

__all__ = [
    "AdaptiveKL",
    "TargetKL",
]
