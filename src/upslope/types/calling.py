"""Calling a part: what a user's own one raises, or returns in place of what is wanted, is told with its place in the method."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.fields import shown
from upslope.types.batch import Batch
from upslope.types.method import Method
from upslope.types.part import Part

Found = TypeVar("Found")


def call(method: Method, part: Part, function: Callable[..., Found], *arguments: Any) -> Found:
    """What ``function``, the part or one of its methods, returns. An error of our own parts stays as it is: it is our fault."""
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        blamed = next((inside for _, inside in part.walk() if is_users_own(inside) and _line(inside, error)), None)
        if blamed is None and not is_users_own(part):
            raise
        raise MethodError(f"{place(method, blamed or part)} raised {_in_words(blamed or part, error)}.") from error


def column(method: Method, part: Part, batch: Batch) -> Tensor:
    """A part called on a batch, for the column of floats ``[N, T]`` it must return."""
    found: object = call(method, part, part, batch)  # type: ignore[arg-type]
    if not (isinstance(found, Tensor) and found.shape == batch.sampled.shape and found.is_floating_point()):
        raise wrong(method, part, found, f"a float tensor of shape {list(batch.sampled.shape)}, a number for each decision")
    return found


def wrong(method: Method, part: Part, found: object, wanted: str) -> MethodError:
    """The error for a part that returned something else than it must."""
    return MethodError(f"{place(method, part)} returned {_described(found)}; it must return {wanted}.")


def place(method: Method, part: Part) -> str:
    """Where a part stands: ``regularize.0 (ReferenceKL)``."""
    path = next((path for path, other in method.parts() if other is part), "")
    return f"{path} ({type(part).__name__})" if path else type(part).__name__


def _described(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {list(found.shape)} and {found.dtype}"
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        return f"a {type(found).__module__} array of shape {list(found.shape)}"
    return "None" if found is None else f"{shown(found)} ({type(found).__name__})"


def is_users_own(part: Part) -> bool:
    """Whether the user wrote it."""
    return not type(part).__module__.startswith("upslope.")


def _in_words(part: Part, error: Exception) -> str:
    line, said = _line(part, error), f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{' '.join(said.split())} ({Path(_source(part)).name}, line {line})" if line else " ".join(said.split())


def _line(part: Part, error: Exception) -> int:
    """The last line of the part's file that an error passed through; 0 if it did not."""
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _source(part)]
    return lines[-1] if lines else 0


def _source(part: Part) -> str:
    return str(getattr(sys.modules.get(type(part).__module__), "__file__", ""))
