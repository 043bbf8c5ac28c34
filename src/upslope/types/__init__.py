"""The nouns everybody shares: what was sampled (`Trajectories`, `Batch`) and what a method is (`Part`, `Method`).

Rows are ``N``, positions ``T``. A *decision* is a pair ``(row, position)`` at which the policy chose: a token, an environment
step. Everything a part may see is a column of such decisions, in a `Batch`; a vocabulary or an observation never is.
"""

from upslope.types.batch import UNCUT, Batch, Ended, GroupStats, Source, Trajectories, View, decision_keys, pack_rows, unpack_rows
from upslope.types.calling import call, column, wrong
from upslope.types.method import NAMED_SLOTS, OPTIONAL_SLOTS, SINGLE_SLOTS, SLOTS, STACKED_SLOTS, Method, Paper
from upslope.types.part import Head, Metrics, Part, Scope

__all__ = [
    "NAMED_SLOTS",
    "OPTIONAL_SLOTS",
    "SINGLE_SLOTS",
    "SLOTS",
    "STACKED_SLOTS",
    "UNCUT",
    "Batch",
    "Ended",
    "GroupStats",
    "Head",
    "Method",
    "Metrics",
    "Paper",
    "Part",
    "Scope",
    "Source",
    "Trajectories",
    "View",
    "call",
    "column",
    "decision_keys",
    "pack_rows",
    "unpack_rows",
    "wrong",
]
