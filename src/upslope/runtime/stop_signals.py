"""Stop signals: Ctrl-C and SIGTERM end a run after its step, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopSignals:
    """What Ctrl-C and a scheduler's SIGTERM do: while steps are made, the first asks for a stop after the step, the second ends."""

    def __init__(self) -> None:
        self.asked = False
        self._waits = False

    def __call__(self, number: int, frame: object) -> None:
        if self.asked or not self._waits:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While there is a step to finish and a checkpoint to write."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Listens as long as the block lasts. Only the main thread can."""
    signals, old = StopSignals(), dict[signal.Signals, Any]()
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            old[each] = signal.signal(each, signals)
    except ValueError:
        pass
    try:
        yield signals
    finally:
        for each, handler in old.items():
            signal.signal(each, handler)
