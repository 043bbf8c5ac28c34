"""The catalogue: every method is a value in one of the modules below; this file only finds them."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from upslope.errors import MethodError, did_you_mean
from upslope.types import NAMED_SLOTS, SLOTS, STACKED_SLOTS, Method


@cache
def catalogue() -> dict[str, Method]:
    """Every method by name, in the order of year and name."""
    found: dict[str, Method] = {}
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Method) and found.setdefault(value.name, value) != value:
                raise MethodError(f"two different methods are called {value.name!r}.")
    return dict(sorted(found.items(), key=lambda item: (item[1].paper.year, item[0])))


def find(name: str) -> Method:
    """The method of this name; an unknown one is refused with the nearest names."""
    methods = catalogue()
    if name not in methods:
        raise MethodError(f"no method named {name!r}.{did_you_mean(name, methods)} 'upslope methods' lists all {len(methods)}.")
    return methods[name]


def check_own_name(method: Method) -> None:
    """Refuses a user's method that is called like one of the catalogue and is another: no table could tell them apart."""
    known = catalogue().get(method.name)
    if known is not None and (changed := ", ".join(method.diff(known))):
        raise MethodError(f"your method is called {method.name!r} like one of the catalogue, and differs from it in {changed}. "
                          "Give it a name of its own: derive(name=...).")  # fmt: skip


def compose(names: list[str], take: dict[str, str] | None = None) -> Method:
    """The first method with what each other changes against its own parent.

    Slots that stack take additions and removals, ``models`` merges by name, the rest hold one part: two different changes of
    such a slot collide.

    Args:
        names: as in ``"dhpo+high-entropy".split("+")``.
        take: which method wins a slot that collides, as in ``{"surrogate": "dapo"}``.
    """
    base, *others = [find(name) for name in names]
    take = dict(take or {})
    _check_take(take, names)
    method, changed_by = base, {slot: base.name for slot in (base.diff(find(base.parent)) if base.parent else SLOTS)}
    for other in others:
        if not other.parent:
            raise MethodError(f"{other.name} has no parent, so it is no change that could be added to {base.name}.")
        parent = find(other.parent)
        for slot in other.diff(parent):
            if slot in STACKED_SLOTS or slot in NAMED_SLOTS:
                merged = _merge(getattr(method, slot), getattr(other, slot), getattr(parent, slot), named=slot in NAMED_SLOTS)
                method = method.derive(**{slot: merged})
                continue
            mine, theirs = getattr(method, slot), getattr(other, slot)
            if mine != theirs and slot in changed_by and take.get(slot) not in (other.name, changed_by[slot]):
                raise MethodError(f"{changed_by[slot]} and {other.name} both fill {slot!r}: {mine} and {theirs}. "
                                  f"Say which: --take {slot}={changed_by[slot]} or --take {slot}={other.name}.")  # fmt: skip
            if take.get(slot, other.name) == other.name:
                method = method.derive(**{slot: theirs})
                changed_by[slot] = other.name
    return method.derive(name="+".join(names), parent=base.name, differs=f"with the changes of {', '.join(names[1:])}")


def _check_take(take: dict[str, str], names: list[str]) -> None:
    for slot, name in take.items():
        if slot not in SLOTS:
            raise MethodError(f"--take {slot}={name}: no slot named {slot!r}.{did_you_mean(slot, SLOTS)}")
        if name not in names:
            raise MethodError(f"--take {slot}={name}: {name!r} is not among the composed methods {', '.join(names)}.")


def _merge(ours: tuple, theirs: tuple, parents: tuple, named: bool) -> tuple:
    """Ours with what they added to their parent added and what they removed removed."""
    if named:
        removed = {key for key, _ in parents} - {key for key, _ in theirs}
        added = [item for item in theirs if item not in parents]
        kept = {key: part for key, part in ours if key not in removed}
        return tuple((kept | dict(added)).items())
    removed_parts = [part for part in parents if part not in theirs]
    return (
        *(part for part in ours if part not in removed_parts),
        *(part for part in theirs if part not in parents and part not in ours),
    )
