"""A further term: the same estimator over rows of another source, with parts and an update of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from upslope.objective.base import Advantage, Aggregate, LossTerm, Ratio, Surrogate
from upslope.types import Method


@dataclass(frozen=True)
class Term(LossTerm):
    """One update on the rows that a data part put aside under ``source``; where there are none the term is skipped.

    Fields:
        source: name of the rows.
        when: ``"before"`` the step's own updates or ``"after"`` them.
    """

    source: str
    advantage: Advantage
    ratio: Ratio
    surrogate: Surrogate
    aggregate: Aggregate
    when: Literal["before", "after"] = "before"

    def as_method(self, name: str, of: Method) -> Method:
        """The method this term is on its rows."""
        parts = {slot: getattr(self, slot) for slot in ("advantage", "ratio", "surrogate", "aggregate")}
        return Method(name=f"{of.name}.{name}", paper=of.paper, policy=of.policy, **parts)
