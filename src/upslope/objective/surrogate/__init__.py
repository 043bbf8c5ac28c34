"""Which trust region?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.surrogate.clip import (
    Bounds,
    BranchClip,
    ClippedWeight,
    GeometricMean,
    LogLikelihood,
    PessimisticClip,
    Unclipped,
    advantage_of,
    check_region,
    clip_notes,
    finite_logp,
    mixed,
    pessimistic,
)

__all__ = [
    "Bounds",
    "BranchClip",
    "ClippedWeight",
    "GeometricMean",
    "LogLikelihood",
    "PessimisticClip",
    "Unclipped",
    "advantage_of",
    "check_region",
    "clip_notes",
    "finite_logp",
    "mixed",
    "pessimistic",
]
