"""Types of plain data: what JSON and TOML hold, and the values that knobs are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonDict = dict[str, Any]
"""A table as JSON or TOML holds it: text, numbers, booleans, lists and tables."""
Knobs = Mapping[str, Any]
"""Values by the path of a knob: ``{"surrogate.high": 0.3}``; a whole part may be a part or its text."""
