"""References that speak: which of them sample further turns of a method's steps."""

from __future__ import annotations

from upslope.errors import MethodError
from upslope.objective.base import Data
from upslope.types import Method


def speakers(method: Method) -> dict[str, frozenset[str]]:
    """The references that sample further turns, by the path of the part that asks for it."""
    asked = {f"data.{number}": part.speakers() for number, part in enumerate(method.data) if isinstance(part, Data)}
    return {path: names for path, names in asked.items() if names}


def check_speakers(method: Method) -> None:
    """Who is to sample must be a reference that keeps weights; the start needs no name."""
    known = dict(method.references)
    for path, names in speakers(method).items():
        for name in sorted(names - {"start"}):
            if name not in known:
                raise MethodError(f"{method.name}: {path} lets {name!r} sample, and the method has no reference of that name. Give "
                                  f"it one: references={{{name!r}: Snapshot()}}, or --set references.{name}=Snapshot.")  # fmt: skip
            if not known[name].copies:
                raise MethodError(f"{method.name}: {path} lets {name!r} sample, and {type(known[name]).__name__} keeps no weights "
                                  "to sample with. Take Start, Snapshot or MovingAverage.")  # fmt: skip
