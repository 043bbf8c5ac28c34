"""Every part of the objective that has fields."""

from __future__ import annotations

import dataclasses

from upslope.types import Part
from upslope.types.part_index import own_parts


def part_classes() -> dict[str, type[Part]]:
    """By the class's name."""
    found = {kind.__name__: kind for kind in own_parts().values() if kind.__module__.startswith("upslope.objective.")}
    return {name: kind for name, kind in sorted(found.items()) if dataclasses.fields(kind)}
