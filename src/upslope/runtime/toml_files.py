"""TOML of any origin as tables. What would take the parser minutes, or whoever looks at it too deep, is an error."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from upslope.plain_data import JsonDict

MOST_DOTS = 200
"""In one line, outside of quotes: every dot of a key is a table within a table, and tomllib takes the square of their number."""
DEEPEST = 40
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')


def parse_toml(text: str) -> JsonDict:
    """The tables of a text; ``ValueError`` if it is not TOML, or nothing that we would write."""
    for line in text.splitlines():
        if line.count(".") > MOST_DOTS and _QUOTED.sub("", line).count(".") > MOST_DOTS:
            raise ValueError("it is nested too deep")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in level if isinstance(item, (dict, list))]
        if not level:
            return tables
    raise ValueError("it is nested too deep")
