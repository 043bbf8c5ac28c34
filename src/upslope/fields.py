"""Whether the fields of a dataclass hold what they are declared to: the type of the hint, no NaN, and the interval given for them.

One check for a run's settings and for the knobs of every part, wherever they come from: Python, a flag, ``--set`` or ``run.toml``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from upslope.errors import MethodError, did_you_mean

HUGE = 2.0**63
"""The end of the whole numbers that TOML can hold."""


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, of which a bracket belongs to it and a parenthesis does not: ``[0, 1)``, ``(0, inf)``.

    ``inf]`` allows "no bound", ``inf)`` wants a finite number.
    """

    low: float
    high: float
    with_low: bool
    with_high: bool

    @staticmethod
    @cache
    def parse(text: str) -> Interval:
        try:
            low, high = text[1:-1].split(",")
            if text[0] not in "[(" or text[-1] not in "])":
                raise ValueError
            return Interval(float(low), float(high), text[0] == "[", text[-1] == "]")
        except (ValueError, IndexError, TypeError):
            raise MethodError(f"the range {text!r} is no interval; write it as '[0, 1]', '(0, inf)' or '(1, inf]'.") from None

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.with_low else value > self.low
        return above and (value <= self.high if self.with_high else value < self.high)

    def wants(self, value: float) -> str:
        """In words, for a value that is not in it: ``at least 0 and below 1``. Ends that are nobody's concern are left out."""
        words = []
        if value <= self.low or abs(self.low) < HUGE:
            words.append(f"{'at least' if self.with_low else 'above'} {_plain(self.low)}")
        if abs(value) == math.inf:
            words.append("finite")
        elif value >= self.high or self.high < HUGE:
            words.append(f"{'at most' if self.with_high else 'below'} {_plain(self.high)}")
        return " and ".join(words)


def problem(value: Any, hint: Any, interval: str = "") -> str:
    """What is wrong with a value of a field, as the end of a sentence (``it must be above 0.``); nothing if it is right.

    Args:
        hint: the field's type; one that cannot be checked, such as ``Any``, allows everything.
        interval: where a number must be (`Interval`); without one every number but NaN will do.
    """
    if not _fits(value, hint):
        near = did_you_mean(value, choices_of(hint)) if isinstance(value, str) else ""
        return f"it must be {_wanted(hint)}.{near}"
    if isinstance(value, str):
        return "" if can_be_written(value) else "it must be text that can be written as UTF-8."
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return ""
    if value != value:
        return "it must be a number, and NaN is none."
    if interval and value not in Interval.parse(interval):
        return f"it must be {Interval.parse(interval).wants(value)}."
    return ""


def hints(kind: Any) -> Mapping[str, Any]:
    """The type of each field of a dataclass; none where a hint names what is not there when the program runs."""
    return _hints(kind)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    try:
        found = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}
    return {f.name: found[f.name] for f in dataclasses.fields(kind) if f.name in found}


def all_ranges(kind: Any) -> Mapping[str, str]:
    """The intervals a class declares for its fields under ``ranges``, and those of its base classes."""
    return _all_ranges(kind)


@cache
def _all_ranges(kind: Any) -> Mapping[str, str]:
    return {name: interval for base in reversed(kind.__mro__) for name, interval in vars(base).get("ranges", {}).items()}


def choices_of(hint: Any) -> tuple[str, ...]:
    """The texts that a hint allows, if it is a choice."""
    if typing.get_origin(hint) is Literal:
        return tuple(str(choice) for choice in typing.get_args(hint))
    return tuple(choice for option in _options(hint) for choice in choices_of(option)) if len(_options(hint)) > 1 else ()


def can_be_written(text: str) -> bool:
    """Whether a text can go into a file: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple:
        inside = arguments[0] if len(arguments) == 2 and arguments[1] is Ellipsis else Any
        return isinstance(value, tuple) and all(_fits(item, inside) for item in value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _wanted(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
    if choices := choices_of(hint):
        others = [names[option] for option in _options(hint) if option in (int, float)]
        return " or ".join([*others, f"one of {', '.join(choices)}" if len(choices) > 1 or not others else choices[0]])
    if typing.get_origin(hint) is tuple:
        return f"a list with commas, each of it {names.get(typing.get_args(hint)[0], 'a value')}"
    options = [option for option in _options(hint) if option is not type(None)]
    return " or ".join(names.get(option, f"a {getattr(option, '__name__', option)}") for option in options)


def _plain(number: float) -> str:
    if abs(number) == HUGE:
        return f"{'-' if number < 0 else ''}2**63"
    return f"{number:g}"


def shown(value: Any) -> str:
    """A value in a message, shortened."""
    try:
        text = " ".join(repr(value).split("\n"))  # a message is one line
    except ValueError:  # Python does not write whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
