"""upslope: policy optimization as a composition of small parts on one engine.

    >>> import upslope as up
    >>> up.method("dhpo").parent
    'grpo'

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
FUNCTIONS = (
    "compare", "compose", "describe", "estimate", "list_methods", "list_tasks", "load", "load_data", "make_data", "method",
    "reset_free", "resume", "train",
)  # fmt: skip
CLASSES = {
    "Callback": "upslope.run.callbacks", "Dataset": "upslope.experience", "Episode": "upslope.experience",
    "Episodes": "upslope.experience", "StopTraining": "upslope.run.callbacks", "Tracker": "upslope.runtime.trackers",
    "UserError": "upslope.errors", "Watcher": "upslope.run.watcher",
}  # fmt: skip
"""For what is written around a run, and where each is defined."""
__all__ = [
    "Callback", "Dataset", "Episode", "Episodes", "StopTraining", "Tracker", "UserError", "Watcher", "__version__", "compare",
    "compose", "describe", "estimate", "list_methods", "list_tasks", "load", "load_data", "make_data", "method", "reset_free",
    "resume", "train",
]  # fmt: skip

if TYPE_CHECKING:
    from upslope.api import (
        compare,
        compose,
        describe,
        estimate,
        list_methods,
        list_tasks,
        load,
        load_data,
        make_data,
        method,
        reset_free,
        resume,
    )
    from upslope.api import train as train
    from upslope.errors import UserError
    from upslope.experience import Dataset, Episode, Episodes
    from upslope.run.callbacks import Callback, StopTraining
    from upslope.run.watcher import Watcher
    from upslope.runtime.trackers import Tracker


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS or name in CLASSES:
        from importlib import import_module

        from upslope.runtime.environment import ALLOCATOR, default_environment

        with default_environment(ALLOCATOR):  # which loads torch
            return getattr(import_module(CLASSES.get(name, "upslope.api")), name)
    raise AttributeError(f"module 'upslope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
