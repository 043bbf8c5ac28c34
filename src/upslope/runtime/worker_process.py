"""A process that works for this one: started fresh, spoken to over a channel, ended with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from upslope.errors import UserError
from upslope.runtime.environment import ALLOCATOR
from upslope.runtime.messages import Closed, Message, receive, send

PATIENCE = 5.0
"""Seconds that a worker gets to leave when it is told to, or to be buried when it is dead."""


class WorkerLost(Exception):
    """A worker that cannot go on; ``kind`` is what faults are counted by."""

    def __init__(self, kind: str, why: str):
        super().__init__(why)
        self.kind = kind


class WorkerProcess:
    """A process at work.

    Args:
        name: For people.
        command: What is started, given the number of the open channel that it inherits.
        log: Takes all that it prints.
        threads: Torch threads it should have.
    """

    role = "worker"
    """What its faults are called by."""

    def __init__(self, name: str, command: Callable[[int], list[str]], log: Path, threads: int = 1):
        self.name, self.log, self._ended = name, log, False
        self.channel, theirs = socket.socketpair()
        log.parent.mkdir(exist_ok=True)
        environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        with theirs, log.open("ab") as said:
            self.process = subprocess.Popen(
                command(theirs.fileno()), stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_ready(self, seconds: float) -> None:
        self.hear("ready", seconds)

    def tell(self, message: Message, silent_seconds: float | None) -> None:
        """Sends a message.

        Raises:
            WorkerLost: if nobody is there, or takes nothing for so long.
            UserError: if the worker refused something before it left, in its own words.
        """
        self.channel.settimeout(silent_seconds)
        try:
            send(self.channel, message)
        except OSError:
            self._raise_what_it_left_saying()
            raise WorkerLost(f"{self.role}_died", self.last_words()) from None

    def hear(self, kind: str, silent_seconds: float | None) -> Message:
        """The next message of this kind; signs of life in between say that there is something to wait for.

        Raises:
            WorkerLost: if it does not come.
            UserError: if the worker refuses what it is asked, in its own words.
        """
        self.channel.settimeout(silent_seconds)
        while True:
            try:
                message = receive(self.channel)
            except TimeoutError:
                raise WorkerLost(f"{self.role}_hung", f"{self.name} said nothing for {silent_seconds:g} s") from None
            except (Closed, OSError, ValueError):
                raise WorkerLost(f"{self.role}_died", self.last_words()) from None
            raise_if_it_failed(self.name, message)
            if message.kind == kind:
                return message

    def _raise_what_it_left_saying(self) -> None:
        """One that refuses and leaves may be gone before a message to it is written whole: its words are still in the channel."""
        self.channel.setblocking(False)
        with suppress(OSError, ValueError):
            while True:
                raise_if_it_failed(self.name, receive(self.channel))

    def last_words(self) -> str:
        """How it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        code = self.process.returncode
        how = f"was killed ({signal.Signals(-code).name})" if code is not None and code < 0 else f"ended with code {code}"
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            if lines and code is not None and code > 0:
                how += f": {lines[-1][:300]}"
        return f"{self.name} {how}"

    def leave(self) -> None:
        """Asks it to go."""
        with suppress(OSError):
            send(self.channel, Message("quit"))

    def end(self) -> None:
        """Kills what is left of it, and all that it has started; once, as its number may be somebody else's afterwards."""
        if self._ended:
            return
        self._ended = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()


def raise_if_it_failed(name: str, message: Message) -> None:
    """Raises what a worker says went wrong.

    Raises:
        UserError: if it refuses what it is asked, in its own words.
        RuntimeError: if it failed.
    """
    if message.kind == "refused":
        raise UserError(message.data["why"])
    if message.kind == "raised":
        raise RuntimeError(f"{name} failed:\n{message.data['why']}")
