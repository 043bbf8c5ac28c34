"""Values of tables as plain data: what numpy, pandas and Arrow hold, as JSON could say it."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping
from typing import Any

from upslope.errors import TaskError

DEEPEST = 50
"""Lists in lists and tables in tables, before a value is taken for one that holds itself."""


def plain(value: Any, where: str, name: str, depth: int = 0) -> Any:
    """A value of a column; missing ones (NaN, NaT, NA) are None.

    Raises:
        TaskError: if it is nothing that a file of JSON could hold, such as an image.
    """
    if isinstance(value, (str, bool, int)) or value is None:
        return value if type(value) in (str, bool, int, type(None)) else _base(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if depth > DEEPEST:
        raise TaskError(f"{where}: {name!r} is nested deeper than {DEEPEST}. Leave the column out.")
    if isinstance(value, Mapping):
        return {str(key): plain(item, where, name, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, where, name, depth + 1) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return None if value != value else value.isoformat()  # NaT is a date that equals nothing
    if isinstance(value, decimal.Decimal):
        return str(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "tolist"):  # a scalar or an array of numpy, a series
        return plain(value.tolist(), where, name, depth + 1)
    raise TaskError(
        f"{where}: {name!r} is a {type(value).__name__}, which is no text, number, list or table. "
        "Leave the column out, or write it as text."
    )


def _base(value: Any) -> Any:
    """A text or number of a class of its own (numpy's, an enumeration's) as the plain one."""
    return str(value) if isinstance(value, str) else bool(value) if isinstance(value, bool) else int(value)
