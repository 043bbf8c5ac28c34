"""What is measured: rows of the table, the two sides of each, and the clock that drives a side in its process."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import machine


@dataclass(frozen=True)
class Setting:
    """One way to run a side; the best of its settings counts."""

    label: str
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else the side's function understands."""
    borrowed: bool = False
    """The other side with switches of the process that our command sets by itself and nobody else does: the best of these does not
    count, and has a ratio of its own. It says how much of ours comes from the switches."""

    @property
    def environment(self) -> dict[str, str]:
        """What the process begins with. Libraries for arithmetic read their number of threads as they are loaded, and torch's
        allocator how soon it hands memory back: 10 ms is its own default, which our command changes."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads))
        return threads | {"MIMALLOC_PURGE_DELAY": "-1" if self.borrowed else "10"}


ONE_AND_TWO = (Setting("1 thread", 1), Setting("2 threads", 2))
BORROWED = (Setting("1 thread, our switches", 1, borrowed=True), Setting("2 threads, our switches", 2, borrowed=True))


@dataclass(frozen=True)
class Side:
    """One of the two libraries.

    Fields:
        name: in words, with its version.
        run: a function at the top level of a module, ``run(clock, given, setting)``. It sets up, calls `Clock.ready`, then does
            one unit of work after the other for ever, with `Clock.tick` after each; the clock ends it.
        package: must be importable, or the side is refused with the command that installs it.
    """

    name: str
    run: Callable[[Clock, Any, Setting], None]
    settings: tuple[Setting, ...] = ONE_AND_TWO
    package: str = "upslope"


@dataclass(frozen=True)
class Row:
    """One line of the table: a piece of work and who does it.

    Fields:
        name: of the script and of the result. work: what one unit of it is, in words.
        unit: of the figures. rate: the count that is divided by the seconds; empty, and the figure is seconds per unit of work.
        given: handed to both sides.
        window: units of work in a window.
        exact: counts that must be the same on both sides. near: counts that are drawn, with the relative difference allowed.
        wanted: the least ratio aimed at. least: the least figure of ours. most_memory: of ours, in MiB. goal: all of it in words.
        device: where the work is done; decides what peak memory means.
        uncounted: its work is done by processes that the system does not count as children, as those of a sandbox: whether the
            machine was idle is then what was heard before.
        in_turns: windows of both sides alternate. Otherwise one side ends before the other begins: each has the GPU to itself.
    """

    name: str
    work: str
    unit: str
    ours: Side
    peer: Side
    given: Any
    window: int
    exact: tuple[str, ...]
    near: Mapping[str, float] = field(default_factory=dict)
    rate: str = ""
    wanted: float | None = None
    least: float | None = None
    most_memory: float | None = None
    goal: str = ""
    device: str = "cpu"
    uncounted: bool = False
    in_turns: bool = True


class Finished(BaseException):
    """The harness has all it wants. Not an `Exception`, so that no library's own handler keeps it."""


# -- inside a process ------------------------------------------------------------------------------------------------------


class Clock:
    """What a side is driven by: it waits for the harness, takes the time of a window and reports what was done in it."""

    def __init__(self, pipe: Any, device: str):
        self._pipe, self._device = pipe, device
        self._left, self._began = 0, 0.0
        self._counts: dict[str, float] = defaultdict(float)

    def ready(self) -> None:
        """Everything is set up; returns when the first window begins."""
        self._pipe.send({"baseline": machine.forget_peak(self._device)})
        self._wait()

    def begin_again(self) -> None:
        """The window begins now: what was done since the last tick does not count."""
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
        self._began = time.perf_counter()

    def tick(self, **counts: float) -> bool:
        """One unit of work is done, and what it consisted of; returns when the next one may begin, and whether a window does."""
        for name, count in counts.items():
            self._counts[name] += count
        self._left -= 1
        if self._left:
            return False
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        self._pipe.send({"seconds": seconds, "counts": dict(self._counts), "peak": machine.peak(self._device)})
        self._wait()
        return True

    def _wait(self) -> None:
        wanted = self._pipe.recv()
        if wanted is None:
            raise Finished
        self._counts.clear()
        self._left, self._began = wanted, time.perf_counter()


def set_threads(setting: Setting) -> None:
    """The other side's threads; with our switches, torch also leaves oneDNN out on ARM, where it slows small products down."""
    import torch

    if setting.borrowed:
        from upslope.runtime.threads import use_threads

        return use_threads(setting.threads)
    torch.set_num_threads(setting.threads)


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Works in a folder that is thrown away: trainers and simulators leave files where they stand."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def work(pipe: Any, run: Callable[[Clock, Any, Setting], None], given: Any, setting: Setting, device: str) -> None:
    """A process: one side in one setting, until it is told to end or breaks."""
    try:
        with scratch_folder():
            run(Clock(pipe, device), given, setting)
    except Finished:
        return
    except BaseException:
        with contextlib.suppress(OSError):  # the harness may be gone
            pipe.send({"failed": traceback.format_exc()})
