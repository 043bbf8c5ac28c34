"""Methods to and from TOML tables, exactly: a part is a table of its class and all its fields."""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from upslope.errors import MethodError
from upslope.runtime import user_code
from upslope.runtime.code_bundle import Bundle
from upslope.types import NAMED_SLOTS, Method, Paper, Part

HOMES = ("upslope.objective.", "upslope.policies.", "upslope.rollout.")
"""Where parts of our own live; nothing else is imported because a file names it."""


def dump_method(method: Method) -> str:
    """The method as TOML text."""
    return tomli_w.dumps(method_table(method))


def load_method(text: str, code: Path | None = None) -> Method:
    """The method a TOML text describes; ``code`` is the folder with the user's own files it names."""
    return method_from_table(tomllib.loads(text), code)


def method_table(method: Method) -> dict[str, Any]:
    """The method as plain tables."""
    table: dict[str, Any] = {}
    for f in dataclasses.fields(method):
        value = getattr(method, f.name)
        if f.name == "paper":
            table[f.name] = dataclasses.asdict(value)
        elif f.name == "on":
            table[f.name] = {domain: dict(knobs) for domain, knobs in value}
        elif f.name in NAMED_SLOTS:
            table[f.name] = {name: _part_table(part) for name, part in value}
        elif value is not None:
            table[f.name] = _plain(value)
    return table


def method_from_table(table: dict[str, Any], code: Path | None = None) -> Method:
    """The method that `method_table` described."""
    table = _expected(table, dict, "a method")
    known = {f.name for f in dataclasses.fields(Method)}
    if unknown := sorted(set(table) - known):
        raise MethodError(f"this method has fields {', '.join(unknown)} that this version of upslope does not know.")
    try:
        table["paper"] = Paper(**table["paper"])
        for slot in NAMED_SLOTS:
            table[slot] = {name: _value(part, code) for name, part in _expected(table.get(slot, {}), dict, slot).items()}
    except (KeyError, TypeError) as problem:
        raise MethodError(f"this is no whole method: {problem}.") from None
    for name, value in table.items():
        if name not in ("paper", "on", *NAMED_SLOTS):
            table[name] = _value(value, code)
    try:
        return Method(**table)
    except (TypeError, ValueError, AttributeError) as problem:
        raise MethodError(f"this is no whole method: {problem}.") from None


def _expected(value: Any, kind: type, what: str) -> Any:
    """A copy of a table or list, if it is one."""
    if not isinstance(value, kind):
        raise MethodError(f"{what} is {str(value)[:60]!r}; it must be a {'table' if kind is dict else 'list'}.")
    return kind(value)


def user_bundles(method: Method) -> set[Bundle]:
    """Code of the user's own that defines parts of this method."""
    modules = {type(part).__module__ for _, part in method.parts()}
    return {user_code.bundle_of(name) for name in modules if user_code.is_user_module(name)}


def check_can_be_found_again(method: Method) -> None:
    """Refuses parts whose code a run could not keep: it would end in a folder that cannot be resumed."""
    for path, part in method.parts():
        module = type(part).__module__
        if not (module.startswith("upslope.") or user_code.is_user_module(module)):
            name = type(part).__name__
            raise MethodError(
                f"{path} is a {name} from the module {module!r}, whose code the run cannot keep. Put the method into a file of "
                f"its own and give that: up.train('my_method.py', ...)."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return _part_table(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise MethodError(f"a part may hold numbers, text, booleans and parts, not {value!r}; write 'no bound' as inf.")


def _part_table(part: Part) -> dict[str, Any]:
    kind = type(part)
    module = kind.__module__
    name = user_code.reference(module, kind.__name__) if user_code.is_user_module(module) else f"{module}:{kind.__name__}"
    return {"part": name, **{f.name: _plain(getattr(part, f.name)) for f in dataclasses.fields(part)}}


def _value(value: Any, code: Path | None) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, code) for item in value)
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("part"), str):
        raise MethodError(f"{str(value)[:60]!r} is no part: it does not say which.")
    kind = _part_class(value["part"], code)
    given = {name: _value(item, code) for name, item in value.items() if name != "part"}
    if unknown := sorted(set(given) - {f.name for f in dataclasses.fields(kind)}):
        raise MethodError(f"{value['part']} has no field {', '.join(unknown)} in this version of upslope.")
    try:
        return kind(**given)
    except MethodError:
        raise
    except Exception as problem:  # the user's own part may raise anything
        raise MethodError(f"{value['part']} cannot be made of {given}: {problem}.") from problem


def _part_class(name: str, code: Path | None) -> type[Part]:
    if ".py:" in name:
        if code is None:
            raise MethodError(f"{name} is a part of a user's own file; the folder that holds it was not given.")
        found = user_code.resolve(name, code)
    else:
        module, _, attribute = name.partition(":")
        if not module.startswith(HOMES):  # a run file must not be able to import whatever it likes
            raise MethodError(f"{name!r} is not a part of upslope.")
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except (ImportError, ValueError):
            found = None
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise MethodError(f"{name!r} is not a part.")
    return found
