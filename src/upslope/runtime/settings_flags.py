"""`Settings` as flags: every field with its type, its docstring as help. No torch here, so that ``--help`` stays fast."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.runtime.settings import Domain, Settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field, those of text and of control apart."""
    groups: dict[Domain | None, Any] = {
        None: parser.add_argument_group("settings", "In brackets: what a setting is when it is left out."),
        "text": parser.add_argument_group("settings for text"),
        "control": parser.add_argument_group("settings for control"),
    }
    kinds, meanings = typing.get_type_hints(Settings), field_docs(Settings)
    for field in dataclasses.fields(Settings):
        group, options = groups[field.metadata.get("domain")], _options(kinds[field.name], meanings[field.name], field.default)
        if "switch" in field.metadata:  # it was a switch once, and may still be given like one
            on, off = field.metadata["switch"]
            group.add_argument(_flag(field.name), nargs="?", const=on, **options | {"type": _switch(options["type"], on, off)})
            hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            group.add_argument(f"--no-{_flag(field.name)[2:]}", dest=field.name, action="store_const", const=off, **hidden)
        else:
            group.add_argument(_flag(field.name), **options)


def given_settings(flags: argparse.Namespace) -> JsonDict:
    """The settings that were given, and no others: what is left out has a default that depends on the task."""
    return {f.name: getattr(flags, f.name) for f in dataclasses.fields(Settings) if hasattr(flags, f.name)}


def read_setting(name: str, text: str) -> Any:
    """The value of a setting given as text, as its flag would read it; switches are ``on`` or ``off``."""
    options = _options(typing.get_type_hints(Settings)[name], "", None)
    field = Settings.__dataclass_fields__[name]
    if "switch" in field.metadata:
        options["type"] = _switch(options["type"], *field.metadata["switch"])
    if "action" in options:
        known = {"on": True, "true": True, "off": False, "false": False}
        if text.lower() not in known:
            raise UserError(f"{_flag(name)} is {text!r}; it must be on or off.")
        return known[text.lower()]
    try:
        return options.get("type", str)(text)
    except argparse.ArgumentTypeError as problem:
        raise UserError(f"{_flag(name)}: {problem}.") from None


def whole(least: float = -math.inf) -> Callable[[str], int]:
    """Reads a whole number."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    return read


def number(least: float = -math.inf) -> Callable[[str], float]:
    """Reads a finite number."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number")
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    return read


def pairs(flag: str, given: Sequence[str], like: str) -> dict[str, str]:
    """The values of a flag that is given as ``KEY=VALUE``, perhaps several times; ``like`` is an example for the message."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = (word.strip() for word in text.partition("="))
        if not key or not equals or not value:
            raise UserError(f"{flag} {text!r} is not of the form {like}.")
        if key in found:
            raise UserError(f"{flag} gives {key!r} twice: {found[key]!r} and {value!r}. Leave one out.")
        found[key] = value
    return found


def field_docs(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass, on one line."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(statement.target, ast.Name)
            found[statement.target.id] = " ".join(str(below.value.value).split())
    return found


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}.{did_you_mean(text, choices)}")
        return text

    return read


def _whole_or(words: list[str]) -> Callable[[str], int | str]:
    def read(text: str) -> int | str:
        if text in words:
            return text
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor {' or '.join(words)}") from None

    return read


def _switch(read: Callable[[str], Any], on: str, off: str) -> Callable[[str], Any]:
    """Reads what was a switch once, also where it is given like one."""
    return lambda text: read({"on": on, "true": on, "off": off, "false": off}.get(text.lower(), text))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(default: bool | float | str) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return default or "none" if isinstance(default, str) else format(default, "g")


def _options(kind: Any, meaning: str, default: Any) -> JsonDict:
    """How argparse is told of a field; a flag that is not given leaves no trace."""
    kinds = [each for each in typing.get_args(kind) or (kind,) if each is not type(None)]
    if typing.get_origin(kind) is Literal:
        kinds = [kind]
    words = [word for each in kinds[1:] if typing.get_origin(each) is Literal for word in typing.get_args(each)]
    told = re.sub(r"`+(\w+)`+", lambda name: _flag(name[1]) if name[1] in Settings.__dataclass_fields__ else name[1], meaning)
    told = re.sub(r"`+([^`]+)`+", r"\1", told).replace("%", "%%")
    if default is not None:
        told += f" ({_shown(default)})"
    options: JsonDict = {"default": argparse.SUPPRESS, "help": told}
    if kinds == [bool]:
        return options | {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kinds[0]) is Literal:
        choices = typing.get_args(kinds[0])
        return options | {"type": _one_of(choices), "metavar": "|".join(choices)}
    if kinds == [str]:
        return options | {"metavar": "NAME" if default else "TEXT"}
    if words:
        return options | {"type": _whole_or(words), "metavar": "|".join(["N", *words])}
    return options | ({"type": whole(), "metavar": "N"} if kinds == [int] else {"type": number(), "metavar": "X"})
