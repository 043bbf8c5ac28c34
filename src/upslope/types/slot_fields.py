"""Slot fields: the kinds of fields of a method that hold several things, typed by what they take and by what they hold.

A slot that holds one part is an ordinary field. The others are descriptors, as dataclasses allow them: what is given is
brought to one form when a method is made, and a type checker knows both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from upslope.errors import MethodError
from upslope.fields import shown
from upslope.types.part import Part

PartT = TypeVar("PartT", bound=Part)


class Stack(Generic[PartT]):
    """A slot whose parts act one after another: given a part, several or none, it holds a tuple."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> tuple[PartT, ...]:
        return () if instance is None else vars(instance)[self.name]

    def __set__(self, instance: object, value: PartT | Iterable[PartT] | None) -> None:
        held = () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)
        vars(instance)[self.name] = held


class Named(Generic[PartT]):
    """A slot whose parts have names: given a mapping, it holds pairs of name and part, sorted by name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> tuple[tuple[str, PartT], ...]:
        return () if instance is None else vars(instance)[self.name]

    def __set__(self, instance: object, value: Mapping[str, PartT] | Iterable[tuple[str, PartT]] | None) -> None:
        vars(instance)[self.name] = pairs(value)


class InOrder(Stack[PartT]):
    """A slot whose parts have names of their own and come one after another: it holds a tuple, in which no name is twice."""

    def __set__(self, instance: object, value: PartT | Iterable[PartT] | None) -> None:
        super().__set__(instance, value)
        names = [part.name for part in vars(instance)[self.name] if hasattr(part, "name")]
        if twice := [name for name in names if names.count(name) > 1]:
            raise MethodError(f"two of the {self.name} are named {shown(twice[0])}; give each a name of its own.")


Knobs = tuple[tuple[str, object], ...]


class ByDomain:
    """Knobs by domain: given mappings, it holds sorted pairs."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> tuple[tuple[str, Knobs], ...]:
        return () if instance is None else vars(instance)[self.name]

    def __set__(self, instance: object, value: Mapping[str, Any] | Iterable[tuple[str, Knobs]] | None) -> None:
        vars(instance)[self.name] = tuple((domain, _hashable(pairs(knobs))) for domain, knobs in pairs(value))


def _hashable(knobs: tuple[tuple[str, Any], ...]) -> Knobs:
    """Knobs with tuples in place of lists: a method is a value."""
    return tuple((path, tuple(value) if isinstance(value, list) else value) for path, value in knobs)


def pairs(value: object) -> tuple:
    """A mapping, or pairs, as sorted pairs."""
    if not value:
        return ()
    items = value.items() if isinstance(value, Mapping) else value
    if not isinstance(items, Iterable) or any(not isinstance(item, tuple) or len(item) != 2 for item in items):
        raise MethodError(f"{shown(value)} stands where a mapping of names is wanted, as in models={{'value': ValueFunction()}}.")
    return tuple(sorted(items, key=lambda item: str(item[0])))
