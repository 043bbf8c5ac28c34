"""Names that a module gives on demand, by its ``__getattr__``: unknown ones with a suggestion, old ones with their successor."""

from __future__ import annotations

import dis
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from upslope.errors import did_you_mean


def unknown(name: str, module: str, what: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error of a module's ``__getattr__`` for a name that is not there, with the nearest ones.

    ``from module import name`` turns every `AttributeError` into a bare "cannot import name", so there it is an `ImportError`.
    """
    told = f"module {module!r} has no {what} {name!r}.{did_you_mean(name, known)}"
    asked = sys._getframe(2)  # whoever asked the module's __getattr__
    importing = asked.f_lasti >= 0 and asked.f_code.co_code[asked.f_lasti] == dis.opmap["IMPORT_FROM"]
    return ImportError(told, name=module) if importing else AttributeError(told)


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
