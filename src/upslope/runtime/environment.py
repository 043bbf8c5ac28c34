"""Environment variables that libraries read as they are loaded. The environment is the caller's: it is changed for that long only.

No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "-1"}
"""On ARM torch brings mimalloc, which hands freed memory back after 10 ms: a training step then spends a tenth of its time on
getting the same pages again. It looks at this once, when torch is loaded; whoever sets it keeps what they set."""


@contextmanager
def default_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that have no value have these as long as the block lasts."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
