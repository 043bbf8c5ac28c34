"""How far has the policy moved, and at which granularity?

Here are the parts that many methods share; those of one paper stand in a module of their own.
"""

from upslope.objective.ratio.granularity import (
    LOG_LIMIT,
    Against,
    ConstantMix,
    EntropyMix,
    Hybrid,
    NoRatio,
    SequenceRatio,
    TokenRatio,
    carrier,
    log_ratio,
    raw_log_ratio,
)

__all__ = [
    "LOG_LIMIT",
    "Against",
    "ConstantMix",
    "EntropyMix",
    "Hybrid",
    "NoRatio",
    "SequenceRatio",
    "TokenRatio",
    "carrier",
    "log_ratio",
    "raw_log_ratio",
]
