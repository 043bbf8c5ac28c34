"""Types of plain data: what JSON and TOML hold, the values that knobs are given, and prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JsonDict = dict[str, Any]
"""A table as JSON or TOML holds it: text, numbers, booleans, lists and tables."""
Knobs = Mapping[str, Any]
"""Values by the path of a knob: ``{"surrogate.high": 0.3}``; a whole part may be a part or its text."""
Message = Mapping[str, Any]
"""One turn of a conversation: ``{"role": "user", "content": "What is 2+2?"}``."""
Prompt = str | Sequence[Message]
"""What a language model is given to answer: a text, or the turns of a conversation."""
