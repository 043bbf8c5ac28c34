"""upslope: policy optimization as a composition of small parts on one engine.

    >>> import upslope as up
    >>> up.method("dhpo").parent
    'grpo'

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "compose", "list_methods", "list_tasks", "load", "method", "resume", "train"]

if TYPE_CHECKING:
    from upslope.api import compare, compose, list_methods, list_tasks, load, method, resume, train


def __getattr__(name: str) -> Any:
    if name in __all__:
        from upslope.runtime.environment import ALLOCATOR, default_environment

        with default_environment(ALLOCATOR):  # which loads torch
            from upslope import api

        return getattr(api, name)
    raise AttributeError(f"module 'upslope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
