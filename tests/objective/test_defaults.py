"""The defaults of every part are what they were: methods are made of them, and another default is another method of the same name.

A field that a part gains later is missing in the files of older runs, so its default does what the part did without it.
``PYTHONPATH=tests python tests/objective/test_defaults.py`` adds what is new to ``part_defaults.json`` and changes nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from part_classes import part_classes

from upslope.types import Part

PINNED = Path(__file__).parent / "part_defaults.json"


def defaults(kind: type[Part]) -> dict[str, str]:
    """Default of each field as Python writes it; a field without one is named, too."""
    made = {f.name: f.default_factory() for f in dataclasses.fields(kind) if f.default_factory is not dataclasses.MISSING}
    given = {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING} | made
    return {f.name: repr(given[f.name]) if f.name in given else "required" for f in dataclasses.fields(kind)}


def pinned() -> dict[str, dict[str, str]]:
    return json.loads(PINNED.read_text())


@pytest.mark.parametrize("name", sorted(pinned()))
def test_the_defaults_of_a_part_are_what_they_were(name: str):
    assert defaults(part_classes()[name]) == pinned()[name]


def test_every_part_is_listed():
    assert part_classes().keys() == pinned().keys(), "PYTHONPATH=tests python tests/objective/test_defaults.py adds what is new"


if __name__ == "__main__":
    old = pinned() if PINNED.exists() else {}
    now = {name: {**defaults(kind), **old.get(name, {})} for name, kind in part_classes().items()}
    PINNED.write_text(json.dumps(now, indent=1) + "\n")
