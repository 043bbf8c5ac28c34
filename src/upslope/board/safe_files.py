"""Files below the runs folder, opened so that no link leads out of it.

A run's folder may come from anywhere: a link in it, put there by whoever made it, must not show other files of this machine.
Every step of the way is opened by its own name and never through a link, so there is no moment in which one could slip in.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

MIB = 2**20


class TooLarge(Exception):
    """A file with more bytes than anybody wants to look at."""


@contextmanager
def folder(root: Path, *parts: str) -> Iterator[int]:
    """A descriptor of the folder that many steps below ``root``; ``OSError`` if it is not there or a step is a link."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def is_folder(root: Path, *parts: str) -> bool:
    """Whether it is there, and not through a link."""
    try:
        with folder(root, *parts):
            return True
    except OSError:
        return False


def open_file(at: int, name: str) -> BinaryIO:
    """A plain file of an open folder, to read; ``OSError`` for links, pipes and devices too."""
    # A pipe without a writer would keep us waiting, hence the flag; plain files do not know it.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is no plain file")
    return os.fdopen(descriptor, "rb")


def read(at: int, name: str, most: int = MIB) -> bytes:
    """A whole file of an open folder."""
    with open_file(at, name) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise TooLarge(f"{name} has more than {most / MIB:.3g} MiB; that is too much to show.")
    return found


def write(at: int, name: str, data: bytes) -> None:
    """Writes a file of an open folder so that a reader sees the old one or the new one; a link of that name is replaced."""
    draft = f".{name}.{os.getpid()}.{threading.get_ident()}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=at)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=at)
        raise


def stamp(at: int, name: str) -> tuple[int, int, int] | None:
    """What changes when a file does: which file it is, its size, its time. None if there is no such plain file."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
