"""Environment variables that libraries read as they are loaded, and what the C library does with freed memory.

The environment is the caller's: it is changed only as long as something is loaded.

No torch here.
"""

from __future__ import annotations

import ctypes
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


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What `mallopt` calls its settings."""
MOST_MMAP_THRESHOLD = 32 * 2**20
"""The largest that glibc takes on 64 bits."""
GLIBC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Has glibc keep what is freed for the next who asks, in this process from here on; whether it does.

    By itself it hands memory back as soon as twice the largest block is free at the end of its heap. On x86, where torch takes its
    memory from it, many a training step then gets the same pages again: up to 13,500 of them in an update of 64 rows with a model
    of a million parameters, a tenth of its time. Whoever has set one of its variables keeps what they set.
    """
    try:
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # another system, or another C library
        return False
    if not glibc or any(name in os.environ for name in GLIBC_VARIABLES):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(TRIM_THRESHOLD, 2**31 - 1) and libc.mallopt(MMAP_THRESHOLD, MOST_MMAP_THRESHOLD))
