"""upslope: policy optimization as a composition of small parts on one engine.

    >>> import upslope as up
    >>> up.method("dhpo").parent
    'grpo'

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# On ARM torch brings mimalloc, which hands freed memory back after 10 ms: a training step then spends a tenth of its time on
# getting the same pages again. It looks at this once, when torch is loaded; whoever sets it keeps what they set.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "compose", "list_methods", "list_tasks", "load", "method", "resume", "train"]

if TYPE_CHECKING:
    from upslope.api import compare, compose, list_methods, list_tasks, load, method, resume, train


def __getattr__(name: str) -> Any:
    if name in __all__:
        from upslope import api

        return getattr(api, name)
    raise AttributeError(f"module 'upslope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
