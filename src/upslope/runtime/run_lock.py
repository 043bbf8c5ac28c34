"""One owner per run: a lock that the system takes back when its process ends, however that ends.

The lock is the system's own on ``run.lock`` (``flock``, which NFS passes on to its server); ``process.json`` says whose it is.
Where there are no locks, what ``process.json`` says has to do: a process that is there holds the run, and one on another machine,
of which nothing can be known, too.
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime import process_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE, PROCESS = "run.lock", process_file.FILE
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What file systems without locks answer."""
_held: weakref.WeakSet[_Handle] = weakref.WeakSet()


class InUse(UserError):
    """Another process works on the run."""


class _Handle:
    """An open lock file. A forked child must not keep it: the lock would outlive its owner."""

    def __init__(self, path: Path):
        self.number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(self)

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


def _let_go_in_child() -> None:
    for handle in list(_held):
        handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def owned(run: Path) -> Iterator[None]:
    """This process alone works on the run for as long as the block lasts.

    Raises:
        InUse: if another one does, with what is known of it.
    """
    handle = _Handle(run / FILE)
    try:
        _take(handle, run)
        with process_file.at_work(run):
            yield
    finally:
        handle.close()


def _take(handle: _Handle, run: Path) -> None:
    if fcntl is not None:
        try:
            fcntl.flock(handle.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as problem:
            if problem.errno not in NO_LOCKS:
                raise InUse(f"{run} is being worked on by {_who(run)}; wait for it to end, or stop it.") from None
    record = _record(run)
    if "pid" in record and (process_file.elsewhere(record) or process_file.worker(record) is not None):
        raise InUse(
            f"{run} says that {_who(run)} works on it, and this file system has no locks to tell for sure. "
            f"If that process is gone, delete {run / process_file.FILE}."
        )


def _who(run: Path) -> str:
    record = _record(run)
    if "pid" not in record:
        return "another process"
    return f"process {record['pid']} on {record.get('host') or 'an unknown machine'}"


def _record(run: Path) -> JsonDict:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((run / process_file.FILE).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}
