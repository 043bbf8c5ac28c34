"""Every part, and the class of every slot, importable from one place.

    >>> from upslope.parts import Advantage, GroupBaseline, PessimisticClip
    >>> issubclass(GroupBaseline, Advantage), PessimisticClip(high=0.28).high
    (True, 0.28)

``dir(upslope.parts)`` lists them. The modules that define them may move; these names stay.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from upslope import types
from upslope.types.lazy_names import unknown
from upslope.types.part_index import KINDS, own_parts

SLOT_NAMES = (
    *sorted(each.__name__ for each in KINDS.values()),
    *("ActingContext", "ActionSpace", "Branch", "DataContext", "Drawn", "DrawnData", "Learned", "Model", "ModelView", "Network"),
    *("Networks", "Notes", "Part", "ProbeInputs", "Solved", "State", "Stateful", "World"),
)
"""The base class of each kind of parts, and what their calls take and return."""


@cache
def _names() -> dict[str, Any]:
    """Everything this module offers."""
    bases = {name: getattr(types, name) for name in SLOT_NAMES}
    return bases | {part.__name__: part for part in own_parts().values()}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_names())
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _names():
        raise unknown(name, __name__, "part", _names())
    return _names()[name]


def __dir__() -> list[str]:
    return sorted(_names())
