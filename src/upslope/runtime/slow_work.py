"""Work that may take seconds before there is a live view which could show it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SILENT_SECONDS = 2.0


@contextlib.contextmanager
def said_if_slow(what: str) -> Iterator[None]:
    """A line on the error stream if the block takes longer than `SILENT_SECONDS`."""
    timer = threading.Timer(SILENT_SECONDS, print, [what], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
