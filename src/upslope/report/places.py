"""Where methods and parts are defined, as paths from the folder that holds their package: ``upslope/methods/rlvr/dapo.py``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from upslope.methods import own_methods, package_methods
from upslope.runtime.user_code import MODULE_PREFIX
from upslope.types import Method


def method_source(method: Method) -> str:
    """The file that defines the method of this name; nothing for one that was made in a program, as compositions are."""
    for module in _modules(method):
        values = [vars(module).get(name) for name in _assigned(module.__file__ or "")]
        if any(isinstance(value, Method) and value.name == method.name for value in values):
            return place(module)
    return ""


def part_source(kind: type) -> str:
    """The file that defines a class."""
    module = sys.modules.get(kind.__module__)
    return place(module) if module is not None else ""


def place(module: ModuleType) -> str:
    """A module's file, without the folder that it happens to be installed in."""
    file = Path(module.__file__ or "")
    if module.__name__.startswith(MODULE_PREFIX):  # a user's own file
        return file.name
    inside = module.__name__.split(".")[:-1] if file.stem != "__init__" else module.__name__.split(".")
    return "/".join([*inside, file.name])


def _modules(method: Method) -> Iterator[ModuleType]:
    """Modules that may define a method, those of its package or the user's own files."""
    if method.name in own_methods():
        prefix = "upslope.methods."
    elif method.name in (known := package_methods()):
        prefix = known[method.name][1].value.partition(":")[0].partition(".")[0] + "."
    else:
        prefix = MODULE_PREFIX
    yield from (
        module for name, module in list(sys.modules.items()) if name.startswith(prefix) and getattr(module, "__file__", None)
    )


@cache
def _assigned(file: str) -> frozenset[str]:
    """Names that a file assigns, unlike those it imports."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # zipped, or gone
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
