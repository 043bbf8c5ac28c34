"""The runs of a folder: found, watched, and told apart by what changed since somebody last asked."""

from __future__ import annotations

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
        self._seen: dict[str, RunSummary] = {}
        self._records: dict[str, JsonDict] = {}
        self._changed: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._looked = 0.0
        # Revisions go on from one start of the board to the next, so that a page left open notices.
        self._first = self._revision = int(time.time())

    def listing(self, since: int | None = None) -> JsonDict:
        """The runs that changed since a revision, and those that are gone; all of them without one, or with one too old."""
        with self._lock:
            self._look()
            full = since is None or not self._first <= since <= self._revision
            seen = -1 if full or since is None else since
            return {
                "revision": self._revision,
                "full": full,
                "runs": [record for run, record in self._records.items() if self._changed[run] > seen],
                "gone": [] if full else [run for run, revision in self._gone.items() if revision > seen],
            }

    def find(self, run: str) -> RunSummary:
        """A run by its id. Only what was found by looking is ever opened: an id is never made into a path."""
        with self._lock:
            self._look()
            if run not in self._seen:
                raise Gone(run)
            return self._seen[run]

    def record(self, run: str) -> JsonDict:
        """A run as the list has it, looked at this moment."""
        with self._lock:
            self._looked = 0.0
            self._look()
            if run not in self._records:
                raise Gone(run)
            return self._records[run]

    def touch(self, run: str) -> None:
        """Tells whoever asks what changed to ask for this run again."""
        with self._lock:
            if run in self._changed:
                self._revision += 1
                self._changed[run] = self._revision

    def _look(self) -> None:
        if time.monotonic() - self._looked < FRESH:
            return
        revision, now = self._revision + 1, time.time()
        found = set()
        for run in find_runs(self.root):
            glance = self._seen.get(run) or RunSummary(run)
            try:
                with safe_files.folder(self.root, *glance.parts) as at:
                    glance.look(at)
            except OSError:  # deleted between the two looks
                continue
            found.add(run)
            self._seen[run] = glance
            record = glance.record(now)
            if record != self._records.get(run):
                self._records[run], self._changed[run] = record, revision
                self._gone.pop(run, None)
                self._revision = revision
        for run in set(self._seen) - found:
            del self._seen[run], self._records[run], self._changed[run]
            self._gone[run] = self._revision = revision
        if len(self._gone) > MOST_GONE:
            self._gone.clear()
            self._first = self._revision
        self._looked = time.monotonic()


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
