"""The variants of a method in a comparison: every choice that a grid allows, of knobs, whole parts and settings of the run.

A name with a dot is a knob of a part. One without is a setting (``lr``, ``samples-per-task``) or else a slot, whose values are
whole parts; no setting has the name of a slot.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upslope.errors import UserError
from upslope.plain_data import JsonDict, Knobs
from upslope.runtime.settings import Settings
from upslope.runtime.settings_flags import read_setting
from upslope.runtime.synonyms import meant
from upslope.types import SLOTS
from upslope.types.part_text import as_text

Grid = Mapping[str, Sequence[Any]]
SETTINGS = tuple(f.name for f in dataclasses.fields(Settings))


@dataclass(frozen=True)
class Variant:
    """A method with one choice of what a grid varies."""

    label: str
    knobs: JsonDict
    settings: JsonDict


def read_grid(grid: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """A grid with settings by the names of their fields and values of their types; what no run could take is refused."""
    found: dict[str, tuple[Any, ...]] = {}
    for given, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise UserError(f"the grid has {given!r}: {values!r}; give a list of values, as in {{'lr': [1e-4, 3e-4]}}.")
        owner, colon, name = str(given).rpartition(":")
        path = f"{owner}{colon}{_name(name)}"
        if path in found:
            raise UserError(f"--grid gives {path!r} twice. Put all its values into one list.")
        found[path] = tuple(_value(_name(name), value) for value in values)
        if not values or len(set(map(str, found[path]))) < len(values):
            raise UserError(f"--grid {given} has the values {', '.join(map(str, values))}; give each once.")
    return found


def variants(method: str, name: str, knobs: Knobs, grid: Grid) -> list[Variant]:
    """Every choice of a grid that is for this method, called by what it varies.

    Args:
        method: as it was given; a path ``method:path`` is for that one only.
        name: what it is called.
    """
    fixed = {path_of(key): value for key, value in knobs.items() if is_for(key, method)}
    paths = {path_of(key): values for key, values in grid.items() if is_for(key, method)}
    found = []
    for choice in itertools.product(*paths.values()):
        chosen = dict(zip(paths, choice, strict=True))
        label = " ".join([name, *(f"{path}={shown_value(value)}" for path, value in chosen.items())])
        settings = {path: value for path, value in chosen.items() if path in SETTINGS}
        found.append(Variant(label, {**fixed, **{path: value for path, value in chosen.items() if path not in settings}}, settings))
    return found


def path_of(key: str) -> str:
    return key.rpartition(":")[2]


def is_for(key: str, method: str) -> bool:
    owner = key.rpartition(":")[0]
    return not owner or owner == method


def varied_settings(grid: Grid) -> list[str]:
    """The settings that a grid varies, for any method."""
    return [name for name in dict.fromkeys(map(path_of, grid)) if name in SETTINGS]


def _name(given: str) -> str:
    """A setting by the name of its field; a knob or a slot as it is."""
    if "." in given:
        return given
    name = given.replace("-", "_")
    if name == "seed":
        raise UserError("--grid seed: seeds are no variants of a method. --seeds N runs N of them, from --seed on.")
    if name not in SETTINGS and given not in SLOTS:
        raise UserError(
            f"--grid {given}: there is neither a setting nor a slot of that name.{meant(name, (*SETTINGS, *SLOTS))} "
            "A knob has its slot before it, as in surrogate.high."
        )
    return name if name in SETTINGS else given


def _value(name: str, value: Any) -> Any:
    if name not in SETTINGS:
        return value
    read: Any = read_setting(name, value) if isinstance(value, str) else value
    Settings(**{name: read})  # refuses what is out of range, in words
    return read


def shown_value(value: object) -> str:
    """A value of a grid as one writes it."""
    return f"({as_text(value)})" if isinstance(value, tuple) else as_text(value)
