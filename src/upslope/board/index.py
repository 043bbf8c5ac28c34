"""The runs of a folder: found, watched, and told apart by what changed since somebody last asked."""

from __future__ import annotations

import math
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from upslope.board import safe_files
from upslope.board.run_summary import RunSummary
from upslope.plain_data import JsonDict

DEPTH = 4
"""Folders within folders in which runs are looked for."""
MOST_FOLDERS = 20_000
"""Folders looked into before the search is given up: somebody's home directory is no runs folder."""
FRESH = 0.25
"""Seconds for which what was seen still holds; several pages that ask at once cost as much as one."""
FIRST = 0.5
"""Seconds that the first one to ask waits for the first look, before what it has seen so far is told."""
MOST_GONE = 5000


class Gone(Exception):
    """A run that is not there (any more)."""

    def __init__(self, run: str):
        super().__init__(f"run {run!r} is gone.")


class Runs:
    """All runs below a folder. Everything may be called from several threads."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self._lock = threading.Lock()
        """Of what was seen; held for moments."""
        self._looking = threading.Lock()
        """Of looking at the folder, which takes a second where there are a thousand runs."""
        self._seen: dict[str, RunSummary] = {}
        self._records: dict[str, JsonDict] = {}
        self._changed: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._looked = 0.0
        self._reading = False
        """Whether logs were left unread for now."""
        # Revisions go on from one start of the board to the next, so that a page left open notices.
        # In microseconds: a folder of a thousand runs counts a thousand of them in its first second.
        self._first = self._revision = time.time_ns() // 1000

    def listing(self, since: int | None = None, patience: float = math.inf) -> JsonDict:
        """The runs that changed since a revision, and those that are gone; all of them without one, or with one too old.

        Args:
            patience: Seconds after which no more logs are read: of the runs that are left the list then has what their other
                files say, and ``reading`` says that there is more to come.
        """
        self._refresh(patience)
        with self._lock:
            full = since is None or not self._first <= since <= self._revision
            seen = -1 if full or since is None else since
            return {
                "revision": self._revision,
                "full": full,
                "reading": self._reading or self._looking.locked(),
                "runs": [record for run, record in self._records.items() if self._changed[run] > seen],
                "gone": [] if full else [run for run, revision in self._gone.items() if revision > seen],
            }

    def find(self, run: str) -> RunSummary:
        """A run by its id. Only what was found by looking is ever opened: an id is never made into a path."""
        self._refresh(wait=True) if run not in self._seen else self._refresh(patience=0.0)
        with self._lock:
            if run not in self._seen:
                raise Gone(run)
            return self._seen[run]

    def summaries(self) -> list[RunSummary]:
        """All runs as they were last seen."""
        self._refresh()
        with self._lock:
            return list(self._seen.values())

    def record(self, run: str) -> JsonDict:
        """A run as the list has it, looked at this moment."""
        self._looked = 0.0
        self._refresh(wait=True)
        with self._lock:
            if run not in self._records:
                raise Gone(run)
            return self._records[run]

    def touch(self, run: str) -> None:
        """Tells whoever asks what changed to ask for this run again."""
        with self._lock:
            if run in self._changed:
                self._revision += 1
                self._changed[run] = self._revision

    def _refresh(self, patience: float = math.inf, wait: bool = False) -> None:
        """Looks at the folder, unless somebody else is at it: then what was seen so far will do, if anything was."""
        timeout = -1 if wait or patience == math.inf else 0.0 if self._records else FIRST
        if not self._looking.acquire(blocking=timeout != 0.0, timeout=timeout if timeout else -1):
            return
        try:
            self._look(patience)
        finally:
            self._looking.release()

    def _look(self, patience: float) -> None:
        if time.monotonic() - self._looked < (0.0 if self._reading and patience else FRESH):
            return
        until = time.monotonic() + patience
        now, reading = time.time(), False
        found = set()
        for run in find_runs(self.root):
            glance = self._seen.get(run) or RunSummary(run)
            try:
                with safe_files.folder(self.root, *glance.parts) as at:
                    glance.look(at, read_log=time.monotonic() < until)
            except OSError:  # deleted between the two looks
                continue
            reading = reading or glance.unread
            found.add(run)
            record = glance.record(now)
            with self._lock:
                self._seen[run] = glance
                if record != self._records.get(run):
                    self._revision += 1  # one by one: whoever asks in the middle of a look must get the rest the next time
                    self._records[run], self._changed[run] = record, self._revision
                    self._gone.pop(run, None)
        with self._lock:
            for run in set(self._seen) - found:
                del self._seen[run], self._records[run], self._changed[run]
                self._revision += 1
                self._gone[run] = self._revision
            self._forget_the_gone()
        self._reading = reading
        self._looked = time.monotonic()

    def _forget_the_gone(self) -> None:
        if len(self._gone) > MOST_GONE:
            self._gone.clear()
            self._first = self._revision


def find_runs(root: Path) -> Iterator[str]:
    """Ids of the runs below a folder, in the order of their names. Links are not followed, hidden folders not entered."""
    left = MOST_FOLDERS

    def below(at: int, above: str, depth: int) -> Iterator[str]:
        nonlocal left
        try:
            names = sorted(entry.name for entry in os.scandir(at) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for name in names:
            if name.startswith(".") or left <= 0:
                continue
            left -= 1
            if _is_file(at, f"{name}/run.toml"):
                yield above + name
            elif depth > 1:
                try:
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                except OSError:
                    continue
                try:
                    yield from below(inner, f"{above}{name}/", depth - 1)
                finally:
                    os.close(inner)

    try:
        with safe_files.folder(root) as at:
            yield from below(at, "", DEPTH)
    except OSError:
        return


def _is_file(at: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False
