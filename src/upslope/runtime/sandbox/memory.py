"""The memory of all processes of a program together: a control group of the kernel's where one can be made, else a watcher.

``RLIMIT_AS`` holds each process by itself, so a program with thirty of them could use thirty times as much.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from upslope.runtime.sandbox.limits import MEGABYTE, Limits

PREFIX = "upslope-sandbox-"
OWN_GROUPS, MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mounts")
LEAVE_SECONDS = 1.0
WATCH_SECONDS, GROUP_SECONDS = 0.02, 0.1
"""Between two looks of the watcher, and between two looks whether the kernel has ended a process of a group, and the rest should go
as well."""


class MemoryKeeper(ABC):
    """Holds the programs of one slot, one after the other, to their memory."""

    words: str
    """What it is, for people."""
    every: float
    """Seconds between two looks."""

    def join(self) -> None:  # noqa: B027  # only a group of the first version can be joined
        """Called once by the thread that will start the slot's programs."""

    @abstractmethod
    def hold(self, process: int) -> None:
        """Begins with a program whose first process has this number, before it runs."""

    @abstractmethod
    def exceeded(self, process: int) -> bool:
        """Whether the program that it holds has used more than it may."""

    def close(self) -> None:  # noqa: B027  # a watcher has nothing to give back
        """Leaves nothing behind."""


class MemoryGroup(MemoryKeeper):
    """A control group inside of this process's own, so that whatever limits this process limits its programs as well."""

    def __init__(self, folder: Path, limits: Limits, version: int):
        self.folder, self.version, self.every = folder, version, GROUP_SECONDS
        self.words = f"control group (version {version})"
        allowed = str((limits.memory + 2 * limits.scratch) * MEGABYTE)  # files in a tmpfs count as memory
        folder.mkdir()
        try:
            if version == 2:
                (folder / "memory.max").write_text(allowed)
                _try_write(folder / "memory.swap.max", "0")
                _try_write(folder / "memory.oom.group", "1")
            else:
                (folder / "memory.limit_in_bytes").write_text(allowed)
                _try_write(folder / "memory.memsw.limit_in_bytes", allowed)  # absent where swap is not counted
        except OSError:
            folder.rmdir()
            raise
        self.killed_before = 0

    def join(self) -> None:
        """Moves the thread, in whose group the programs that it starts then are: to move each of them takes milliseconds. Only the
        first version lets a thread be elsewhere than its process; its memory still counts where the process is."""
        if self.version == 1:
            (self.folder / "tasks").write_text(str(threading.get_native_id()))

    def hold(self, process: int) -> None:
        if self.version == 2:
            (self.folder / "cgroup.procs").write_text(str(process))
        self.killed_before = self._killed()

    def exceeded(self, process: int) -> bool:
        return self._killed() > self.killed_before

    def _killed(self) -> int:
        """How often the kernel has ended a process here for want of memory."""
        counts = (self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")).read_text()
        return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith("oom_kill ")), 0)

    def close(self) -> None:
        with suppress(OSError):
            if self.version == 1:
                (self.folder.parent / "tasks").write_text(str(threading.get_native_id()))
        end = time.monotonic() + LEAVE_SECONDS
        while self.folder.exists():
            with suppress(OSError):
                self.folder.rmdir()
            if time.monotonic() > end:
                return
            time.sleep(0.002)  # processes that were killed are still leaving


class MemoryWatcher(MemoryKeeper):
    """Adds up the memory of a program's processes every few milliseconds."""

    words = f"watcher, every {1000 * WATCH_SECONDS:.0f} ms"
    every = WATCH_SECONDS

    def __init__(self, limits: Limits):
        self.allowed = limits.memory * MEGABYTE

    def hold(self, process: int) -> None:
        pass

    def exceeded(self, process: int) -> bool:
        if not Path(f"/proc/{process}").exists():  # it is over
            return False
        family = descendants(process)
        # What a fork shares with its parent is counted in both; only where that would be too much is it told apart, which is slow.
        return sum(map(_resident, family)) > self.allowed and sum(map(_proportional, family)) > self.allowed


def memory_keeper(limits: Limits, name: str, watch: bool = False) -> MemoryKeeper:
    """The best there is for a slot; ``watch`` takes the watcher in any case."""
    for folder, version in [] if watch else own_groups():
        _sweep(folder)
        with suppress(OSError):
            return MemoryGroup(folder / f"{PREFIX}{os.getpid()}-{name}", limits, version)
    return MemoryWatcher(limits)


def own_groups(groups: Path = OWN_GROUPS, mounts: Path = MOUNTS) -> list[tuple[Path, int]]:
    """Folders of the groups that this process is in and that can count memory, with the version of their interface."""
    try:
        lines, mounted = groups.read_text().splitlines(), mounts.read_text().splitlines()
    except OSError:
        return []
    places: dict[str, Path] = {}
    for _, place, kind, options, *_ in (line.split() for line in mounted):
        if kind == "cgroup2":
            places[""] = Path(place)
        elif kind == "cgroup" and "memory" in options.split(","):
            places["memory"] = Path(place)
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(",") and "memory" in places:
            found.append((places["memory"] / path.lstrip("/"), 1))
        elif not controllers and "" in places:
            own = places[""] / path.lstrip("/")
            # Handing on the memory controller is for whoever set up this process's group to allow.
            with suppress(OSError):
                if "memory" in (own / "cgroup.subtree_control").read_text().split():
                    found.append((own, 2))
    return found


def descendants(process: int) -> list[int]:
    """A process and all that came from it, as far as they live."""
    found = [process]
    for each in found:
        found += _children(each)
    return found


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return found


def _resident(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(process)


def _sweep(folder: Path) -> None:
    """Removes groups of processes that were killed before they could."""
    for left in folder.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with suppress(OSError):  # it still holds a process, which is about to end
                left.rmdir()


def _try_write(file: Path, text: str) -> None:
    with suppress(OSError):
        file.write_text(text)
