"""The logs that are being looked at, kept in memory as long as there is room: the longest unused one goes first.

Nobody waits for a log of a million lines: while it is read in the background, questions are answered from a preview of it, and when
all of it is there the list says that the run has changed, so that the page asks again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from upslope.board import safe_files
from upslope.board.index import Gone, Runs
from upslope.board.log_table import LogTable

MOST_BYTES = 512 * 2**20
"""Of all logs together; the one asked for last is kept in any case."""
AT_ONCE = 16 * 2**20
"""Bytes that are read while somebody waits: less than a second's work."""


@dataclass
class _Log:
    table: LogTable = field(default_factory=LogTable)
    lock: threading.Lock = field(default_factory=threading.Lock)
    preview: LogTable | None = None
    """While the rest is read in the background."""
    nbytes: int = 0


@dataclass
class Budget:
    """Bytes of logs that may be read while somebody waits for one answer, of however many runs it is."""

    left: int = field(default_factory=lambda: AT_ONCE)

    def takes(self, size: int) -> bool:
        """Whether there is room for so many; then they are taken."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Logs:
    """Tables of the logs of runs. May be used from several threads; each log is read by one at a time."""

    def __init__(self, runs: Runs, most_bytes: int = MOST_BYTES):
        self.runs, self.most_bytes = runs, most_bytes
        self._lock = threading.Lock()
        self._reading = threading.Semaphore(1)
        """Logs are read one after the other in the background: the first is there soonest."""
        self._logs: OrderedDict[str, _Log] = OrderedDict()

    @contextmanager
    def table(self, run: str, budget: Budget | None = None) -> Iterator[LogTable]:
        """The log of a run as far as it is written, or a preview of it, for as long as the block lasts."""
        budget = budget or Budget()
        with self._lock:
            log = self._logs.setdefault(run, _Log())
            self._logs.move_to_end(run)
        if (preview := log.preview) is not None:
            yield preview
            return
        with log.lock:
            try:
                with self._open(run) as file:
                    if not budget.takes(log.table.left(file)):
                        log.preview = LogTable.preview(file)
                        threading.Thread(target=self._read_all, args=(run, log), name="upslope-board-log", daemon=True).start()
                    else:
                        log.table.read_on(file)
            except Gone:
                self._forget(run)
                raise
            except OSError:
                pass  # what cannot be opened has no lines; the list says that it is broken
            log.nbytes = log.table.nbytes
            yield log.preview or log.table
        self._make_room()

    @contextmanager
    def _open(self, run: str) -> Iterator[BinaryIO]:
        glance = self.runs.find(run)
        try:
            at = safe_files.folder(self.runs.root, *glance.parts)
            with at as folder, safe_files.open_file(folder, "metrics.jsonl") as file:
                yield file
        except FileNotFoundError:
            if not safe_files.is_folder(self.runs.root, *glance.parts):
                raise Gone(run) from None
            raise

    def _read_all(self, run: str, log: _Log) -> None:
        with self._reading, suppress(OSError, Gone):
            behind = True
            while behind:
                with log.lock, self._open(run) as file:
                    log.table.read_on(file, seconds=0.5)
                behind = log.table.behind
                if log.preview is not None:
                    log.preview.offset = log.table.offset  # what it says of how far it is
                time.sleep(0.005)  # others want to compute too
        log.preview = None
        self.runs.touch(run)

    def _forget(self, run: str) -> None:
        with self._lock:
            self._logs.pop(run, None)

    def _make_room(self) -> None:
        with self._lock:
            while len(self._logs) > 1 and sum(log.nbytes for log in self._logs.values()) > self.most_bytes:
                self._logs.popitem(last=False)
