"""A further term: the same estimator over rows of another source, with parts of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from upslope.objective.base import Advantage, Aggregate, LossTerm, Ratio, Surrogate, Weight
from upslope.types import Method


@dataclass(frozen=True)
class Term(LossTerm):
    """A loss over the rows that a data part put aside under ``source``; where there are none the term is skipped.

    Its means are over its own rows alone: how many others there are changes nothing.

    Fields:
        source: name of the rows.
        when: one update of its own ``"before"`` the step's updates or ``"after"`` them; or ``"with"`` them: each row adds its loss
            to the update that its group was dealt to, and both make one optimiser step.
        scale: what its loss is multiplied with.
        weight: which of its decisions matter, as in a method's own slot.
    """

    ranges: ClassVar = {"scale": "[0, inf)"}

    source: str
    advantage: Advantage
    ratio: Ratio
    surrogate: Surrogate
    aggregate: Aggregate
    when: Literal["before", "with", "after"] = "before"
    scale: float = 1.0
    weight: tuple[Weight, ...] = ()

    def as_method(self, name: str, of: Method) -> Method:
        """The method this term is on its rows."""
        parts = {slot: getattr(self, slot) for slot in ("advantage", "ratio", "surrogate", "aggregate", "weight")}
        return Method(name=f"{of.name}.{name}", paper=of.paper, policy=of.policy, **parts)
