"""The body of a request: JSON, and fields of the right kinds."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from upslope.errors import did_you_mean

QUOTED = 100
"""Characters of a value that an error repeats."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0, 0.0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, False, True),
    "presence_penalty": (None, 0, 0.0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1, 1.0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
"""Fields of the protocol that are not supported, with the values at which they change nothing."""
REMARKS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Fields that never change an answer."""


class BadRequest(Exception):
    """A request that cannot be served, in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


def read_json(raw: bytes) -> Any:
    """What the bytes say."""
    try:
        text = raw.decode()
        body = json.loads(text)
    except UnicodeDecodeError as wrong:
        raise BadRequest(f"the body is not UTF-8: its byte {wrong.start} is {raw[wrong.start]:#04x}.") from None
    except RecursionError:
        raise BadRequest("the body is not JSON that can be read: its lists and objects are nested too deeply.") from None
    except ValueError as wrong:
        raise BadRequest(f"the body is not JSON: {wrong}") from None
    if re.search(r"\\u[dD][89a-fA-F]", text):
        _refuse_halves(body)
    return body


def _refuse_halves(body: object) -> None:
    """Refuses half of a surrogate pair: JSON can spell it, but it is no character, and no tokenizer reads it."""
    for field, value in body.items() if isinstance(body, dict) else [("body", body)]:
        rest = [field, value]
        while rest:  # not recursive: a body may be nested as deeply as the parser allows
            part = rest.pop()
            if isinstance(part, dict):
                rest += [*part.keys(), *part.values()]
            elif isinstance(part, list):
                rest += part
            elif isinstance(part, str) and (half := re.search("[\ud800-\udfff]", part)):
                name = quoted(field)
                raise BadRequest(f"{name} holds \\u{ord(half[0]):x}, half of a surrogate pair, which is no character.", name)


def quoted(value: object) -> str:
    """A value as an error repeats it: not all of a long one."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of more digits than Python writes
        return f"a {type(value).__name__} too large to quote"
    return text if len(text) <= QUOTED else f"{text[: QUOTED - 4]} ..."


def kind(value: object) -> str:
    """What a value is, for errors."""
    return "empty" if value is None else f"a {type(value).__name__}"


class Fields:
    """The fields of a request. What nobody here knows is refused: a misspelt setting must not pass for one that was heeded."""

    def __init__(self, body: object, known: frozenset[str], name: str):
        if not isinstance(body, dict):
            raise BadRequest(f"the body is {kind(body)}; it must be a JSON object.")
        for key, value in body.items():
            if key in NEUTRAL and key not in known:
                if value not in NEUTRAL[key]:
                    raise BadRequest(f"{key}={quoted(value)} is not supported here; leave it out.", key)
            elif key not in known and key not in REMARKS:
                near = did_you_mean(key, known) if len(key) < QUOTED else ""
                raise BadRequest(f"no field {quoted(key)}.{near}", key[:QUOTED])
        asked = body.get("model")
        if asked is not None and asked != name:
            raise BadRequest(f"no model {quoted(asked)}; this server has {name!r}.", "model", 404, "model_not_found")
        self.body = body

    def get(self, key: str) -> Any:
        return self.body.get(key)

    def number(self, key: str, default: float) -> float:
        value = self.body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRequest(f"{key} is {quoted(value)}; it must be a number.", key)
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    def whole(self, key: str, default: int | None, least: int) -> int | None:
        value = self.body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadRequest(f"{key} is {quoted(value)}; it must be a whole number of at least {least}.", key)
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(f"{key} is {quoted(value)}; it must be true or false.", key)
        return bool(value)
