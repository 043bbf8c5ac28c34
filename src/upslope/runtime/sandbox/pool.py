"""Sandboxes in slots, each with an interpreter that waits, so that a program need not wait for one to start."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType

from upslope.runtime.sandbox.command import Means, check_tools
from upslope.runtime.sandbox.forked import Zygote
from upslope.runtime.sandbox.limits import Finished, Limits, SandboxError
from upslope.runtime.sandbox.memory import memory_keeper
from upslope.runtime.sandbox.process import Started, Waiting
from upslope.runtime.sandbox.users import HeldUser, user_range

LEAVE_SECONDS = 2.0
"""Given to each slot when the process ends."""


@dataclass(frozen=True)
class _Job:
    program: str
    stdin: str
    result: Future[Finished]


class Sandbox:
    """Runs programs that nobody has read, several at a time; thread-safe.

    Each slot holds an interpreter that was started before its program came. It runs one program and is thrown away with everything
    that the program could reach; the next one starts while others are at work. Nothing that a program does is seen by another.

    ::

        with Sandbox(Limits(seconds=2), slots=2) as sandbox:
            sandbox.run("print(6 * 7)").stdout   # '42\\n'

    The first sandbox of a process tries whether every limit holds here (`upslope.runtime.sandbox.probes`), and refuses if not.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        slots: int = 1,
        weak: bool = False,
        *,
        means: Means | None = None,
        watch_memory: bool = False,
        checked: bool = True,
    ):
        """Makes the slots; their interpreters start in the background.

        Args:
            limits: of each program.
            slots: programs at a time, each with a user and a thread of its own.
            weak: limits only, without namespaces, filter and another user: a program can read and reach what this process can.
            means: for tests: a sandbox that lacks something.
            watch_memory: do not use a control group.
            checked: for the check itself: do not demand that every limit was seen to hold.
        """
        if slots < 1:
            raise SandboxError(f"a sandbox has {slots} slots; it needs at least 1.")
        check_tools(weak)
        self.limits, self.slots, self.weak, self.means = limits or Limits(), slots, weak, means or Means()
        self.watch_memory = watch_memory
        if checked and not weak:
            from upslope.runtime.sandbox.probes import demand_that_limits_hold

            demand_that_limits_hold()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._waiting: dict[int, Started] = {}
        _open.add(self)
        self._threads = [threading.Thread(target=self._serve, name=f"sandbox-{slot}", daemon=True) for slot in range(slots)]
        for thread in self._threads:
            thread.start()

    def run(self, program: str, stdin: str = "") -> Finished:
        """Runs a Python program to its end.

        Raises:
            SandboxError: if no sandbox can be started here. Whatever the program does is in what is returned.
        """
        return self.submit(program, stdin).result()

    def submit(self, program: str, stdin: str = "") -> Future[Finished]:
        """Runs a program as soon as a slot is free."""
        job = _Job(program, stdin, Future())
        with self._lock:
            if self._closing.is_set():
                raise SandboxError("this sandbox is closed. Make another.")
            self._jobs.put(job)
        return job.result

    def close(self) -> None:
        """Runs what was submitted, then ends the slots and gives back all they held."""
        with self._lock:
            if not self._closing.is_set():
                self._closing.set()
                for _ in self._threads:
                    self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """Ends everything at once; what was submitted and has not ended is cancelled or ends as if killed."""
        if self._process != os.getpid():  # a fork has none of the threads, and the programs are not its own
            return
        with self._lock:
            self._closing.set()
            with suppress(queue.Empty):
                while True:
                    if (job := self._jobs.get_nowait()) is not None:
                        job.result.cancel()
            for _ in self._threads:
                self._jobs.put(None)
        for waiting in list(self._waiting.values()):
            waiting.kill()
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- a slot's thread: an interpreter lives no longer than the thread that started it ---------------------------------------

    def _serve(self) -> None:
        try:
            with _Slot(self) as slot:
                while slot.serve(self._jobs, self._waiting):
                    pass
        except Exception as problem:
            self._refuse(problem)

    def _refuse(self, problem: Exception) -> None:
        """Answers everything with the reason why there is no slot."""
        while (job := self._jobs.get()) is not None:
            job.result.set_exception(problem)


class _Slot:
    """A user number, a place to count memory, and the interpreter that waits."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        numbers = None if sandbox.weak else user_range()
        self.user = HeldUser(numbers) if numbers is not None else None
        self.keeper = memory_keeper(sandbox.limits, str(threading.get_native_id()), sandbox.watch_memory or sandbox.weak)
        self.keeper.join()
        self.zygote: Zygote | None = None
        self.means = None if sandbox.weak else replace(sandbox.means, user=self.user.number if self.user else None)

    def serve(self, jobs: queue.SimpleQueue[_Job | None], alive: dict[int, Started]) -> bool:
        """Starts an interpreter and runs one program in it; whether there may be another."""
        waiting = self._next()
        alive[threading.get_ident()] = waiting
        try:
            job = jobs.get()
            if job is None:
                return False
            try:
                job.result.set_result(waiting.run(job.program, job.stdin))
            except Exception as problem:
                job.result.set_exception(problem)
            return True
        finally:
            del alive[threading.get_ident()]
            waiting.end()

    def _next(self) -> Started:
        """An interpreter that waits: a fork of the slot's own where this process is root, else one that is started."""
        if self.means is None or self.means.user is None:
            return Waiting(self.sandbox.limits, self.keeper, self.means)
        if self.zygote is not None:
            try:
                return self.zygote.fork()
            except SandboxError:  # it went with a program that took too much memory
                self.zygote.end()
        self.zygote = Zygote(self.sandbox.limits, self.keeper, self.means)
        return self.zygote.fork()

    def __enter__(self) -> _Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.zygote is not None:
            self.zygote.end()
        self.keeper.close()
        if self.user is not None:
            self.user.close()


_open: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """Control groups outlive a process that does not remove them."""
    for sandbox in list(_open):
        sandbox.abandon()


def default_slots() -> int:
    """As many programs at a time as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
