"""Setting one field deep inside frozen dataclasses, by a path such as ``surrogate.token.high``, with errors that help."""

from __future__ import annotations

import dataclasses
from typing import Any

from upslope.errors import MethodError, did_you_mean
from upslope.fields import all_ranges, choices_of, hints, problem, shown


def set_knob(holder: Any, path: list[str], value: Any, whole: str, owner: str) -> Any:
    """``holder`` with the field at ``path`` set to ``value``, as the type of what stood there.

    Args:
        holder: a part, a stack of parts, or pairs of name and part.
        whole: the path as the user wrote it, for messages.
        owner: name of the method, for messages.
    """
    if isinstance(holder, tuple):
        return _in_stack(holder, path, value, whole, owner)
    if not dataclasses.is_dataclass(holder) or isinstance(holder, type):
        raise MethodError(f"--set {whole}={said(value)}: {owner} has nothing in slot {whole.split('.')[0]!r} to set a knob of.")
    knobs = [f.name for f in dataclasses.fields(holder)]
    if not path or path[0] not in knobs:
        name, asked = type(holder).__name__, path[0] if path else ""
        given = f"{name} has no knob {asked!r}" if asked else f"{name} is a part, not a knob"
        known = f"Its knobs: {', '.join(knobs) or 'none'}."
        raise MethodError(f"--set {whole}={said(value)}: {given}.{did_you_mean(asked, knobs)} {known}")
    old = getattr(holder, path[0])
    if len(path) > 1 or dataclasses.is_dataclass(old) or isinstance(old, tuple):
        return dataclasses.replace(holder, **{path[0]: set_knob(old, path[1:], value, whole, owner)})
    return dataclasses.replace(holder, **{path[0]: _coerced(holder, path[0], value, whole)})


def said(value: Any) -> str:
    """The value of a knob in a message: as it was typed, where it was."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 80 else shown(value)


def _in_stack(holder: tuple, path: list[str], value: Any, whole: str, owner: str) -> tuple:
    named = bool(holder) and isinstance(holder[0], tuple)
    keys = [item[0] if named else str(position) for position, item in enumerate(holder)]
    items = [item[1] if named else item for item in holder]
    if path and path[0] in keys:
        chosen, rest = keys.index(path[0]), path[1:]
    elif len(items) == 1:
        chosen, rest = 0, path
    else:
        cure = f"say which: {', '.join(keys)}." if items else "there is no knob to set."
        raise MethodError(f"--set {whole}={said(value)}: {owner} has {len(items)} parts in slot {whole.split('.')[0]!r}; {cure}")
    items[chosen] = set_knob(items[chosen], rest, value, whole, owner)
    return tuple(zip(keys, items, strict=True)) if named else tuple(items)


def _coerced(holder: Any, name: str, value: Any, whole: str) -> Any:
    """``value`` (perhaps text from the command line) as what the knob holds."""
    old, kind = getattr(holder, name), hints(type(holder)).get(name)
    if choices := choices_of(kind):
        if value not in choices:
            near = did_you_mean(said(value), choices)
            raise MethodError(
                f"--set {whole}={said(value)}: that knob is one of {', '.join(map(repr, choices))} (now {old!r}).{near}"
            )
        return value
    wanted: type = kind if kind in (bool, int, float, str) else type(old)
    try:
        found = _read(value, wanted)
    except (KeyError, ValueError, OverflowError, TypeError):
        kind_name = "whole number" if wanted is int else wanted.__name__
        raise MethodError(f"--set {whole}={said(value)}: that knob is a {kind_name} (now {old!r}).") from None
    if wrong := problem(found, wanted, all_ranges(type(holder)).get(name, "")):
        raise MethodError(f"--set {whole}={said(value)} (now {old!r}): {wrong}")
    return found


def _read(value: Any, kind: type) -> Any:
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if kind is int:
        if float(value) != int(float(value)):
            raise ValueError
        return int(float(value))
    return kind(value)
