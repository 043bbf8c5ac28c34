"""Names that a module gives on demand, by its ``__getattr__``: unknown ones with a suggestion, old ones with their successor."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from upslope.errors import did_you_mean


def unknown(name: str, module: str, what: str, known: Iterable[str]) -> AttributeError:
    """The error of a module's ``__getattr__`` for a name that is not there, with the nearest ones."""
    return AttributeError(f"module {module!r} has no {what} {name!r}.{did_you_mean(name, known)}")


def renamed(name: str, module: str, successors: Mapping[str, str]) -> Any:
    """What a module's ``__getattr__`` returns for a name that it once had.

    Args:
        module: the module's ``__name__``.
        successors: the old names, each with the one that replaces it in the same module.

    Raises:
        AttributeError: for any other name.
    """
    if name not in successors:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new = successors[name]
    told = f"{module}.{name} is now {module}.{new}; the old name goes one minor version after the one that renamed it."
    warnings.warn(told, DeprecationWarning, stacklevel=3)  # at whoever asked the module's __getattr__
    return getattr(importlib.import_module(module), new)
