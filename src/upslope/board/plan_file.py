"""``run.toml`` of any origin, as far as the board needs it."""

from __future__ import annotations

from upslope.plain_data import JsonDict
from upslope.runtime.toml_files import parse_toml
from upslope.tasks.kinds import with_domain


def parse_plan(text: str) -> JsonDict:
    """The tables of a ``run.toml``; ``ValueError`` if it is nothing that a run writes."""
    plan = parse_toml(text)
    for section in ("settings", "method"):
        if not isinstance(plan.get(section), dict):
            raise ValueError(f"it has no [{section}]")
    return with_domain(plan)
