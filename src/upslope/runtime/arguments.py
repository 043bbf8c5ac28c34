"""What a user hands to a function in Python, looked at before anything else: a wrong type is told, with what is possible.

Each check takes the argument's name and value and returns what the function gets; paths of all kinds become text.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from upslope.errors import UserError
from upslope.fields import shown

Check = Callable[[str, Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def checked(**checks: Check) -> Callable[[Function], Function]:
    """A function whose arguments are checked when it is called; those that are left out are not."""

    def around(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            for name, check in checks.items():
                if name in bound.arguments:
                    bound.arguments[name] = check(name, bound.arguments[name])
            return function(*bound.args, **bound.kwargs)

        return cast(Function, call)

    return around


def refuse(name: str, value: object, wanted: str) -> UserError:
    """The error for an argument of the wrong type."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else f"{shown(value)} ({type(value).__name__})"
    return UserError(f"{name} is {kind}; it must be {wanted}.")


def text(wanted: str, *also: type) -> Check:
    """Text or a path, which becomes text; or an object of these types, as it is."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, also):
            return value
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise refuse(name, value, wanted)
        return value

    return check


def folder(wanted: str) -> Check:
    """Text or a path that the system can call something by."""

    def check(name: str, value: Any) -> Any:
        found = text(wanted)(name, value)
        try:
            usable = b"\0" not in os.fsencode(found)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise UserError(f"{name} is {ascii(found)[:80]}, which no file system can call a folder. Give another.")
        return found

    return check


def instance(wanted: str, *kinds: type) -> Check:
    """An object of one of these types. ``True`` is no number."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise refuse(name, value, wanted)
        return value

    return check


def number(name: str, value: Any) -> Any:
    """A number that is one."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        raise refuse(name, value, "a number")
    return value


def anything_but(wanted: str, *kinds: type) -> Check:
    """Whatever is not of these types: who takes many kinds of objects tells the rest itself."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, kinds):
            raise refuse(name, value, wanted)
        return value

    return check


def optional(check: Check) -> Check:
    """``None``, or what the check wants."""
    return lambda name, value: None if value is None else check(name, value)


def mapping(wanted: str, values: Check | None = None) -> Check:
    """A mapping from text."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise refuse(name, value, wanted)
        return {key: values(f"{name}[{key!r}]", each) if values else each for key, each in value.items()}

    return check


def several(one: Check, wanted: str) -> Check:
    """A list, or anything else that can be gone through but text, bytes and mappings."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, (str, bytes, Mapping, type)) or not isinstance(value, Iterable):
            raise refuse(name, value, wanted)
        return [one(name, each) for each in value]

    return check


def one_or_several(one: Check, wanted: str) -> Check:
    """The same, or a single one."""
    many = several(one, wanted)
    return lambda name, value: one(name, value) if isinstance(value, (str, os.PathLike)) else many(name, value)
