"""One sandboxed interpreter: started, given one program, and gone."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from upslope.runtime.sandbox.command import Means, sandbox_command, weak_command
from upslope.runtime.sandbox.limits import MEGABYTE, SIGXCPU_STATUS, Finished, Limits, Reason, SandboxError
from upslope.runtime.sandbox.memory import MemoryKeeper, descendants
from upslope.runtime.sandbox.seccomp import filter_bytes

CHUNK = 65_536
START_SECONDS = 30.0
"""An interpreter that has not said by then that it is there will not."""
CURE = (
    "In a container, start it with --privileged or --cap-add SYS_ADMIN --security-opt seccomp=unconfined; elsewhere allow user "
    "namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
)


class Started(ABC):
    """An interpreter in a sandbox that waits for its one program."""

    limits: Limits
    keeper: MemoryKeeper
    first: int
    """The number of its first process."""
    first_handle: int | None = None
    """On that process."""
    streams: tuple[IO[bytes], IO[bytes], IO[bytes]]
    """Its stdin, stdout and stderr."""

    @abstractmethod
    def status(self) -> int:
        """Waits for its end; the exit status, a signal as a negative number."""

    @abstractmethod
    def kill(self) -> None:
        """Ends every process, from any thread."""

    @abstractmethod
    def end(self) -> None:
        """Ends it if it lives, and gives back what it held."""

    def is_ready(self) -> bool:
        """Waits until the interpreter says that it is there; whether it does."""
        stdout = self.streams[1]
        with selectors.DefaultSelector() as waiting:
            waiting.register(stdout, selectors.EVENT_READ)
            return bool(waiting.select(START_SECONDS)) and os.read(stdout.fileno(), 1) == b"+"

    def run(self, program: str, stdin: str = "") -> Finished:
        """Hands it the program and waits for its end, or ends it where it meets a limit."""
        source = program.encode(errors="surrogatepass")
        given = b"%d\n%s%s" % (len(source), source, stdin.encode(errors="surrogatepass"))
        began = time.perf_counter()
        conversation = Conversation(self.streams, given, self.limits.output * MEGABYTE)
        try:
            reason = self._watch(conversation, began + self.limits.seconds)
            if reason != "ended":
                self.kill()
            status = self.status()
            conversation.drain()
            if reason == "ended":
                reason = self._why(conversation, status)
            if reason in ("seconds", "memory", "output"):  # bubblewrap says 0 of a sandbox that was killed from outside
                status = -signal.SIGKILL
        finally:
            self.end()
        stdout, stderr = (bytes(each).decode(errors="replace") for each in conversation.outputs)
        return Finished(stdout, stderr, 128 - status if status < 0 else status, reason, time.perf_counter() - began)

    def _watch(self, conversation: Conversation, deadline: float) -> Reason:
        """Waits until the program is over or meets a limit."""
        assert self.first_handle is not None
        with conversation.opened(self.first_handle):
            while True:
                left = deadline - time.perf_counter()
                if left <= 0:
                    return "seconds"
                over = conversation.move(min(left, self.keeper.every))
                if conversation.too_much:
                    return "output"
                if over:
                    return "ended"
                if self.keeper.exceeded(self.first):
                    return "memory"

    def _why(self, conversation: Conversation, status: int) -> Reason:
        if conversation.too_much:
            return "output"
        if self.keeper.exceeded(self.first):
            return "memory"
        return "cpu" if status in (SIGXCPU_STATUS, -signal.SIGXCPU) else "ended"


class Waiting(Started):
    """One that was started for its program.

    The thread that makes it must live as long as it does: the kernel ends it when that thread ends.
    """

    def __init__(self, limits: Limits, keeper: MemoryKeeper, means: Means | None):
        """Starts it; without ``means`` it is held by limits only."""
        self.limits, self.keeper = limits, keeper
        self.scratch = tempfile.mkdtemp(prefix="upslope-weak-") if means is None else ""
        try:
            self.process = self._start_weak() if means is None else self._start(means)
            self.streams = streams_of(self.process)
            if not self.is_ready():
                self.kill()
                raise failure(self.process)
        except BaseException:
            self.end()
            raise

    def _start_weak(self) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.scratch,
            "TMPDIR": self.scratch,
            "LANG": "C.UTF-8",
        }
        process = _popen(weak_command(self.limits), cwd=self.scratch, env=environment, start_new_session=True)
        self.process, self.first = process, process.pid
        self.first_handle = os.pidfd_open(process.pid)
        self.keeper.hold(process.pid)
        return process

    def _start(self, means: Means) -> subprocess.Popen[bytes]:
        rules = _pipe_with(filter_bytes()) if means.seccomp else None
        passed = [] if rules is None else [rules]
        try:
            command = partial(sandbox_command, self.limits, means, rules)
            self.process, self.first = start_bubblewrap(command, passed, self.keeper)
        finally:
            for each in passed:
                os.close(each)
        if not self.first:
            raise failure(self.process)
        self.first_handle = os.pidfd_open(self.first)
        return self.process

    def status(self) -> int:
        return self.process.wait()

    def kill(self) -> None:
        """The first process of a namespace takes all others of it along."""
        handle = self.first_handle
        if handle is not None:
            if self.scratch:  # no namespace: whoever left the family of its own accord is not found
                for each in reversed(descendants(self.first)):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(each, signal.SIGKILL)
            with suppress(OSError):  # it is gone, or given back by its own thread in this moment
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        elif getattr(self, "process", None) is not None:
            self.process.kill()

    def end(self) -> None:
        self.kill()
        process = getattr(self, "process", None)
        if process is not None:
            process.wait()
            if self.scratch:  # the session that the first process led, which outlives it
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            for stream in (process.stdin, process.stdout, process.stderr):
                with suppress(OSError):
                    stream.close()
        if (handle := self.first_handle) is not None:
            os.close(handle)
            self.first_handle = None
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


class Conversation:
    """What goes to a program and comes from it, without ever waiting for one of the three."""

    def __init__(self, streams: tuple[IO[bytes], IO[bytes], IO[bytes]], given: bytes, allowed: int):
        self.stdin, self.streams = streams[0], streams[1:]
        self.given, self.allowed = memoryview(given), allowed
        self.outputs = (bytearray(), bytearray())
        self.selector = selectors.DefaultSelector()
        for stream in (self.stdin, *self.streams):
            os.set_blocking(stream.fileno(), False)

    @property
    def too_much(self) -> bool:
        return sum(map(len, self.outputs)) > self.allowed

    def opened(self, first_handle: int) -> selectors.BaseSelector:
        self.selector.register(first_handle, selectors.EVENT_READ, None)
        self.selector.register(self.stdin, selectors.EVENT_WRITE, self._write)
        for stream, output in zip(self.streams, self.outputs, strict=True):
            self.selector.register(stream, selectors.EVENT_READ, self._reader(stream, output))
        return self.selector

    def move(self, seconds: float) -> bool:
        """Moves what can be moved; whether the program is over."""
        over = False
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                over = True
            else:
                key.data()
        return over

    def _write(self) -> None:
        try:
            self.given = self.given[os.write(self.stdin.fileno(), self.given[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self.given = self.given[:0]
        if not self.given:
            self.selector.unregister(self.stdin)
            with suppress(OSError):
                self.stdin.close()

    def _reader(self, stream: IO[bytes], output: bytearray) -> Callable[[], None]:
        def read() -> None:
            if not self._read(stream, output):
                self.selector.unregister(stream)

        return read

    def _read(self, stream: IO[bytes], output: bytearray) -> bool:
        """Takes a piece of the output; whether there may be more."""
        try:
            piece = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return True
        output += piece
        return bool(piece)

    def drain(self) -> None:
        """Takes what a program that is over has left in the pipes."""
        for stream, output in zip(self.streams, self.outputs, strict=True):
            before = -1
            while not self.too_much and len(output) != before:
                before = len(output)
                self._read(stream, output)
        excess = sum(map(len, self.outputs)) - self.allowed
        for output in reversed(self.outputs):
            del output[max(0, len(output) - max(0, excess)) :]
            excess = sum(map(len, self.outputs)) - self.allowed


def start_bubblewrap(
    command: Callable[[int, int], list[str]], passed: Sequence[int], keeper: MemoryKeeper
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a command that is given two files, of what bubblewrap tells and of what it waits for; and the number of its first
    process, which is held to its memory before it runs, or 0 if it gave up."""
    information, told = os.pipe()
    begin, go = os.pipe()
    try:
        # With the end that reads as well: bubblewrap gives up halfway if nobody is left to read what it tells.
        process = _popen(command(told, begin), pass_fds=[*passed, information, told, begin])
    finally:
        os.close(told)
        os.close(begin)
    with os.fdopen(information, "rb") as reader, os.fdopen(go, "wb") as writer:
        if first := _first_process(reader):
            keeper.hold(first)
            writer.write(b"+")
    return process, first


def streams_of(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    return process.stdin, process.stdout, process.stderr


def failure(process: subprocess.Popen[bytes]) -> SandboxError:
    """The error for one that did not start, in the words of the tool that gave up."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(START_SECONDS)
    said = process.stderr.read(2_000).decode(errors="replace").strip() if process.stderr else ""
    return SandboxError(f"the sandbox does not start here: {said or 'no reason was given'}. {CURE}.")


def _popen(command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, **options)  # type: ignore[call-overload,no-any-return]
    except OSError as problem:
        raise SandboxError(f"the sandbox does not start here: {command[0]}: {problem.strerror or problem}.") from None


def _pipe_with(content: bytes) -> int:
    """A pipe to read what fits into it."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


def _first_process(reader: IO[bytes]) -> int:
    """The number of the first process in the sandbox, as bubblewrap tells it; 0 if it gave up."""
    told = b""
    while not told.rstrip().endswith(b"}"):  # all of it: bubblewrap dies of a reader that has left
        piece = os.read(reader.fileno(), CHUNK)
        if not piece:
            return 0
        told += piece
    return int(json.loads(told)["child-pid"])
