"""``run.toml`` of any origin as tables. What would take the parser minutes, or whoever looks at it too deep, is an error."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_DOTS = 200
"""In one line, outside of quotes: every dot of a key is a table within a table, and tomllib takes the square of their number."""
DEEPEST = 40
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')


def parse_plan(text: str) -> dict[str, Any]:
    """The tables of a ``run.toml``; ``ValueError`` if it is nothing that a run writes."""
    for line in text.splitlines():
        if line.count(".") > MOST_DOTS and _QUOTED.sub("", line).count(".") > MOST_DOTS:
            raise ValueError("it is nested too deep")
    try:
        plan = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level: list[Any] = [plan]
    for _ in range(DEEPEST):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in level if isinstance(item, (dict, list))]
        if not level:
            break
    else:
        raise ValueError("it is nested too deep")
    for section in ("settings", "method"):
        if not isinstance(plan.get(section), dict):
            raise ValueError(f"it has no [{section}]")
    return plan
