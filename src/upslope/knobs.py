"""Setting one field deep inside frozen dataclasses, by a path such as ``surrogate.token.high``, with errors that help."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from upslope.errors import MethodError, did_you_mean
from upslope.fields import all_ranges, choices_of, hints, problem, shown

ReadParts = Callable[[Any, Any, str], "tuple | None"]
"""From a value, the type of the place and the beginning of a message to the parts it means; nothing where it means none."""


@dataclass(frozen=True)
class Setting:
    """What a user asked for with one ``--set``.

    Fields:
        path: as the user wrote it.
        owner: name of the method, for messages.
        read_parts: reads whole parts.
    """

    path: str
    value: Any
    owner: str
    read_parts: ReadParts

    def __str__(self) -> str:
        return f"--set {self.path}={said(self.value)}"

    @property
    def slot(self) -> str:
        return self.path.partition(".")[0]


def set_knob(holder: object, path: list[str], asked: Setting, fits: object = None) -> Any:
    """``holder`` with what stands at ``path`` replaced: a field by a value of its type, or a whole part by another.

    Args:
        holder: a part or none.
        fits: the type of the place the holder stands in.
    """
    if not path:
        return _whole_part(holder, asked, fits)
    if not dataclasses.is_dataclass(holder) or isinstance(holder, type):
        raise MethodError(f"{asked}: {asked.owner} has nothing in slot {asked.slot!r} to set a knob of.")
    name, *rest = path
    knobs = [f.name for f in dataclasses.fields(holder)]
    if name not in knobs:
        known = f"Its knobs: {', '.join(knobs) or 'none'}."
        raise MethodError(f"{asked}: {type(holder).__name__} has no knob {name!r}.{did_you_mean(name, knobs)} {known}")
    old, kind = getattr(holder, name), hints(type(holder)).get(name)
    if isinstance(old, tuple) and any(map(dataclasses.is_dataclass, (*old, *typing.get_args(kind)))):
        new: object = set_in_stack(old, rest, asked, kind)
    elif rest or dataclasses.is_dataclass(old):
        new = set_knob(old, rest, asked, kind)
        if new is None:
            raise MethodError(f"{asked}: {type(holder).__name__} cannot be without its {name}. Give another part.")
    else:
        new = _coerced(holder, name, asked)
    return dataclasses.replace(holder, **{name: new})


def set_in_stack(holder: tuple, path: list[str], asked: Setting, fits: object = None) -> tuple:
    """The same for parts that stack: ``0`` is the first, the number behind the last adds one, no number means all of them."""
    if not path:
        parts = asked.read_parts(asked.value, fits, str(asked))
        if parts is not None:
            return parts
    keys = [str(position) for position in range(len(holder))]
    name, rest = (path[0], path[1:]) if path else ("", [])
    if name.isdecimal() and not rest and (name in keys or name == str(len(keys))):
        parts = asked.read_parts(asked.value, fits, str(asked))
        if parts is not None:
            place = int(name)
            return (*holder[:place], *parts, *holder[place + 1 :])
    chosen, rest = _chosen(keys, path, asked)
    return (*holder[:chosen], set_knob(holder[chosen], rest, asked, fits), *holder[chosen + 1 :])


def set_in_names(holder: tuple, path: list[str], asked: Setting, fits: object = None) -> tuple:
    """The same for pairs of a name and a part: a name that is new adds its part."""
    keys, parts = [key for key, _ in holder], [part for _, part in holder]
    if len(path) <= 1:
        name = path[0] if path else keys[0] if len(keys) == 1 else ""
        field_of_the_only_one = len(parts) == 1 and name in {f.name for f in dataclasses.fields(parts[0])} - set(keys)
        new = None if field_of_the_only_one else asked.read_parts(asked.value, fits, str(asked))
        if new is not None:
            if not new and path and name not in keys:
                raise MethodError(f"{asked}: {asked.owner} has none of that name. It has {', '.join(keys) or 'none at all'}.")
            if not new:
                return tuple(item for item in holder if path and item[0] != name)
            if not name or len(new) > 1:
                raise MethodError(f"{asked}: say under which name, one part each, as in --set {asked.slot}.NAME=Class.")
            return tuple(({**dict(holder), name: new[0]}).items())
    chosen, rest = _chosen(keys, path, asked)
    parts[chosen] = set_knob(parts[chosen], rest, asked, fits)
    return tuple(zip(keys, parts, strict=True))


def set_in_order(holder: tuple, path: list[str], asked: Setting, fits: object = None) -> tuple:
    """The same for parts that have a ``name`` and an order: a path says the name or the position, and a part brings its name."""
    if not path:
        return set_in_stack(holder, path, asked, fits)
    names = [part.name for part in holder]
    if path[0].isdecimal() and int(path[0]) < len(names):
        path = [names[int(path[0])], *path[1:]]
    changed = dict(set_in_names(tuple(zip(names, holder, strict=True)), path, asked, fits))
    if renamed := [f"{part.name!r} under {name!r}" for name, part in changed.items() if part.name != name]:
        raise MethodError(f"{asked}: it puts {renamed[0]}. Say the same name in both places.")
    return tuple(changed.values())


def said(value: object) -> str:
    """The value of a knob in a message: as it was typed, where it was."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 80 else shown(value)


def _chosen(keys: list[str], path: list[str], asked: Setting) -> tuple[int, list[str]]:
    """Which of several parts is meant, and the path inside it."""
    if path and path[0] in keys:
        return keys.index(path[0]), path[1:]
    if len(keys) == 1:
        return 0, path
    cure = f"say which: {', '.join(keys)}." if keys else "there is no knob to set. Put a part there first."
    raise MethodError(f"{asked}: {asked.owner} has {len(keys)} parts in slot {asked.slot!r}; {cure}")


def _whole_part(holder: object, asked: Setting, fits: object) -> Any:
    parts = asked.read_parts(asked.value, fits, str(asked))
    if parts is None:
        if not dataclasses.is_dataclass(holder):
            raise MethodError(f"{asked}: {asked.owner} has nothing in slot {asked.slot!r} to set a knob of.")
        knobs = [f.name for f in dataclasses.fields(holder)]
        known = f"Its knobs: {', '.join(knobs) or 'none'}."
        raise MethodError(
            f"{asked}: {type(holder).__name__} is a part, not a knob. {known} Another part is given as Class(field=value)."
        )
    if len(parts) > 1:
        raise MethodError(f"{asked}: there is room for one part, and {len(parts)} are given.")
    return parts[0] if parts else None


def _coerced(holder: object, name: str, asked: Setting) -> Any:
    """The value (perhaps text from the command line) as what the knob holds."""
    old, kind, value = getattr(holder, name), hints(type(holder)).get(name), asked.value
    number = _number(value) if float in typing.get_args(kind) else None  # a number, or a name or word in its place
    choices = choices_of(kind)
    if number is None and choices:
        if value not in choices:
            near = did_you_mean(said(value), choices)
            allowed = [*map(repr, choices), *(["a number"] if float in typing.get_args(kind) else [])]
            raise MethodError(f"{asked}: that knob is one of {', '.join(allowed)} (now {old!r}).{near}")
        return value
    wanted: type = float if number is not None else kind if kind in (bool, int, float, str) else type(old)
    if number is None and {float, str} <= set(typing.get_args(kind)):
        wanted = str
    try:
        found = _read(value, wanted)
    except (KeyError, ValueError, OverflowError, TypeError, SyntaxError, RecursionError, MemoryError):
        kind_name = {int: "whole number", tuple: "list with commas, as in 1,2"}.get(wanted, wanted.__name__)
        raise MethodError(f"{asked}: that knob is a {kind_name} (now {old!r}).") from None
    if wrong := problem(found, kind if wanted is tuple else wanted, all_ranges(type(holder)).get(name, "")):
        raise MethodError(f"{asked} (now {old!r}): {wrong}")
    return found


def _number(value: Any) -> float | None:
    """The number that a value is, or that a text says."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _read(value: Any, kind: type) -> Any:
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if kind is int:
        if float(value) != int(float(value)):
            raise ValueError
        return int(float(value))
    if kind is tuple and isinstance(value, str):
        return tuple(ast.literal_eval(f"({value.strip().strip('()').rstrip(',')},)"))
    return kind(value)
