"""Processes of runs that the page started: what they print, and whether they got under way.

A run begins only in an empty folder, so what it prints is kept beside the folder until the run has written its plan there; the
open file goes along when it is moved. A folder to be resumed may be anybody's: its log is opened without following links.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from upslope.board import safe_files
from upslope.errors import UserError
from upslope.runtime import process_file, run_lock

LOG = "output.log"
"""What a run started from the page prints, in its folder."""
SAID = 4000
"""Bytes at the end of the log in which its last words are."""
LOOK = 0.05
"""Seconds between looks at whether a run is under way."""


@dataclass(frozen=True)
class Started:
    """A process and the open log it prints to."""

    child: subprocess.Popen[bytes]
    log: int

    def last_words(self) -> str:
        """What it said last, without the name in front."""
        size = os.fstat(self.log).st_size
        said = os.pread(self.log, SAID, max(0, size - SAID)).decode("utf-8", "replace").strip()
        return said.rpartition("upslope: ")[2] if "upslope: " in said else said.splitlines()[-1] if said else ""


class Launcher:
    """Starts processes, and buries those that ended."""

    def __init__(self, patience: float):
        self.patience = patience
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []

    def begin(self, words: list[str], folder: Path) -> None:
        """A new run in a folder that was made for it. One that does not get under way leaves neither folder nor log.

        Raises:
            UserError: with the last words of a run that ended before it began.
        """
        new = _NewRun(folder, folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.log"))
        log = _opened(new.open_log, new.beside)
        try:
            started = self._start(words, log)
            known = self._wait(started, new.under_way)
        except UserError:
            new.settle()
            os.close(log)
            raise
        if known:
            new.settle()
            os.close(log)
            return

        def wait_on() -> None:  # a large model may take its time; what became of it is settled then
            while not new.under_way() and started.child.poll() is None:
                time.sleep(20 * LOOK)
            new.settle()
            os.close(log)

        threading.Thread(target=wait_on, name="upslope-board-start", daemon=True).start()

    def go_on(self, words: list[str], root: Path, parts: tuple[str, ...], under_way: Callable[[], bool]) -> None:
        """A run that is resumed in its folder.

        Raises:
            UserError: with the last words of one that ended before it was under way.
        """
        shown = root.joinpath(*parts, LOG)
        log = _opened(lambda: _open_inside(root, parts), shown)
        try:
            self._wait(self._start(words, log), under_way)
        finally:
            os.close(log)

    def _start(self, words: list[str], log: int) -> Started:
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
        try:
            # -P: the folder the board was started in may be one of runs, and nothing that lies there is to be imported.
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "upslope", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as problem:
            raise UserError(f"the run could not be started: {problem.strerror}.") from None
        with self._lock:
            self._children.append(child)
        return Started(child, log)

    def _wait(self, started: Started, under_way: Callable[[], bool]) -> bool:
        """Whether it is under way; False if that is not known when patience ends."""
        until = time.monotonic() + self.patience
        while not under_way():
            if started.child.poll() is not None and not under_way():
                code = started.child.returncode
                raise UserError(started.last_words() or f"the run ended with code {code} and without a word.")
            if time.monotonic() > until:
                return False
            time.sleep(LOOK)
        return True


@dataclass(frozen=True)
class _NewRun:
    """A folder made for a run, and the log that is kept beside it until the run has begun."""

    folder: Path
    beside: Path

    def open_log(self) -> int:
        return os.open(self.beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def under_way(self) -> bool:
        return (self.folder / "run.toml").exists()

    def settle(self) -> None:
        """Puts the log where it belongs; of a run that did not begin nothing stays."""
        with suppress(OSError):  # the whole folder may be gone again
            if self.under_way():
                self.beside.rename(self.folder / LOG)
            else:
                self.beside.unlink(missing_ok=True)
                self._remove()

    def _remove(self) -> None:
        """Takes away what a run leaves in its folder before it begins, and the folder if there was nothing else."""
        for name in (run_lock.FILE, process_file.FILE):
            (self.folder / name).unlink(missing_ok=True)
        if (self.folder / "code").is_dir():
            shutil.rmtree(self.folder / "code")
        self.folder.rmdir()


def _opened(open_it: Callable[[], int], shown: Path) -> int:
    try:
        return open_it()
    except OSError as problem:
        raise UserError(f"{shown} cannot be written: {problem.strerror or problem}.") from None


def _open_inside(root: Path, parts: tuple[str, ...]) -> int:
    """The log of a run that is there, emptied: a plain file of its own, neither a link nor a second name of another file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with safe_files.folder(root, *parts) as at:
        log = os.open(LOG, flags, 0o644, dir_fd=at)
    found = os.fstat(log)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(log)
        raise OSError("it is no plain file of the run's own")
    os.set_blocking(log, True)
    os.ftruncate(log, 0)
    return log
