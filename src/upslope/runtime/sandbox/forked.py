"""Programs in forks of an interpreter that was started once for a slot: the zygote, and what it makes."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from upslope.runtime.sandbox.command import Means, zygote_command
from upslope.runtime.sandbox.limits import Limits, SandboxError
from upslope.runtime.sandbox.memory import MemoryKeeper
from upslope.runtime.sandbox.process import START_SECONDS, Started, failure, start_bubblewrap
from upslope.runtime.sandbox.seccomp import filter_bytes


class Zygote:
    """The interpreter of a slot that forks for each program. The thread that makes it must live as long as it does."""

    def __init__(self, limits: Limits, keeper: MemoryKeeper, means: Means):
        self.limits, self.keeper = limits, keeper
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(START_SECONDS)
        with theirs:
            number = theirs.fileno()
            rules = filter_bytes() if means.seccomp else b""

            def command(told: int, begin: int) -> list[str]:
                return zygote_command(limits, means, rules, told, begin, number)

            self.process, self.first = start_bubblewrap(command, [number], keeper)
            self.first_handle = os.pidfd_open(self.first) if self.first else None
        if not self.first or self.hear() != b"ready":
            self.process.kill()
            problem = failure(self.process)
            self.end()
            raise problem

    def hear(self) -> bytes:
        """What it says next; nothing if it is gone."""
        try:
            return self.control.recv(600)
        except OSError:
            return b""

    def fork(self) -> Forked:
        """An interpreter that waits for its one program."""
        return Forked(self)

    def end(self) -> None:
        """Ends it, and all that is in its sandbox: the first process there takes the others along."""
        self.control.close()
        if self.first_handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first_handle, signal.SIGKILL)
            with selectors.DefaultSelector() as waiting:
                waiting.register(self.first_handle, selectors.EVENT_READ)
                waiting.select(START_SECONDS)
            os.close(self.first_handle)
            self.first_handle = None
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Forked(Started):
    """A fork of the zygote, in namespaces of its own."""

    def __init__(self, zygote: Zygote):
        self.zygote, self.limits, self.keeper = zygote, zygote.limits, zygote.keeper
        self.ended: int | None = None
        pipes = [os.pipe() for _ in range(3)]
        (inside_in, outside_in), (outside_out, inside_out), (outside_err, inside_err) = pipes
        inside = [inside_in, inside_out, inside_err]
        self.streams = (_opened(outside_in, "wb"), _opened(outside_out, "rb"), _opened(outside_err, "rb"))
        try:
            socket.send_fds(zygote.control, [b"fork"], inside)
            said, handles, _, _ = socket.recv_fds(zygote.control, 600, 1)
        except OSError as problem:
            said, handles = f"!{problem}".encode(), []
        finally:
            for each in inside:
                os.close(each)
        if said != b"+" or not handles:
            self.end()
            raise SandboxError(f"the sandbox lost its interpreter: {said.decode(errors='replace')[1:] or 'it is gone'}.")
        self.first_handle, self.first = handles[0], _process_number(handles[0])
        self.keeper.hold(zygote.first)
        if not self.is_ready():
            self.kill()
            said = self.streams[2].read(2_000)
            self.end()
            raise SandboxError(f"the sandbox could not make room for a program: {said.decode(errors='replace').strip()}.")

    def status(self) -> int:
        if self.ended is None:
            said = self.zygote.hear()
            if said.startswith(b"!"):
                raise SandboxError(f"the sandbox could not make room for a program: {said.decode(errors='replace')[1:]}.")
            self.ended = int(said) if said else -signal.SIGKILL  # where memory ran out, the zygote may have gone as well
        return self.ended

    def kill(self) -> None:
        if self.first_handle is not None:
            with suppress(OSError):  # it is gone, or given back by its own thread in this moment
                signal.pidfd_send_signal(self.first_handle, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        if self.first_handle is not None:
            with suppress(SandboxError):
                self.status()
            os.close(self.first_handle)
            self.first_handle = None
        for stream in self.streams:
            with suppress(OSError):
                stream.close()


def _opened(number: int, mode: str) -> IO[bytes]:
    return os.fdopen(number, mode, buffering=0)


def _process_number(handle: int) -> int:
    """The number, here, of the process behind a handle."""
    lines = Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
