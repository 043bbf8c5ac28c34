"""Processes that a run starts beside itself: fresh, each with a channel to it and a session of its own, so that it can be killed
with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from upslope.errors import UserError
from upslope.runtime.environment import ALLOCATOR
from upslope.runtime.messages import Closed, Message, receive, send

STARTING_SECONDS = 600.0
"""What a process gets to load what it needs."""
MOST_LOST = 5
"""Processes lost one after another, with nothing done in between, that end the run."""
PATIENCE = 5.0
"""Seconds that a process gets to leave when the run ends."""

Role = Literal["worker", "reward"]
"""Who samples, and who scores."""
CALLED: dict[Role, str] = {"worker": "worker", "reward": "reward process"}


class ProcessLost(Exception):
    """A process that cannot go on; ``kind`` is what faults are counted by."""

    def __init__(self, kind: str, why: str):
        super().__init__(why)
        self.kind = kind


@dataclass
class Companion:
    """A process at work for a run.

    Fields:
        folder: Of the run; what the process prints is in its ``logs``.
        role, number: What it is for, and which of those it is.
    """

    folder: Path
    role: Role
    number: int
    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def started(cls, folder: Path, role: Role, number: int, command: Callable[[int], Sequence[str]], threads: int) -> Companion:
        """A new one; `ready` waits until it has loaded what it needs.

        Args:
            command: What to start, given the number of the open channel to the run.
            threads: Torch threads that it may use.
        """
        ours, theirs = socket.socketpair()
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        with theirs, (logs / f"{role}-{number}.txt").open("ab") as log:
            process = subprocess.Popen(
                command(theirs.fileno()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        return cls(folder, role, number, process, ours)

    @property
    def name(self) -> str:
        return f"{CALLED[self.role]} {self.number}"

    def ready(self, seconds: float | None) -> None:
        """Waits until it can be asked; from then on it may be silent for so long."""
        self.channel.settimeout(STARTING_SECONDS)
        self.heard("ready")
        self.channel.settimeout(seconds)

    def tell(self, message: Message) -> None:
        try:
            send(self.channel, message)
        except OSError:
            raise ProcessLost(f"{self.role}_died", self.last_words()) from None

    def heard(self, kind: str) -> Message:
        """The next message of this kind; signs of life in between say that there is something to wait for.

        Raises:
            ProcessLost: if it does not come.
            UserError: if the process refuses what it is asked, in its own words.
        """
        while True:
            try:
                message = receive(self.channel)
            except TimeoutError:
                silent = f"{self.name} said nothing for {self.channel.gettimeout():g} s"
                raise ProcessLost(f"{self.role}_hung", silent) from None
            except (Closed, OSError, ValueError):
                raise ProcessLost(f"{self.role}_died", self.last_words()) from None
            if message.kind == "refused":
                raise UserError(message.data["why"])
            if message.kind == "raised":
                raise RuntimeError(f"{self.name} failed:\n{message.data['why']}")
            if message.kind == kind:
                return message

    def last_words(self) -> str:
        """How it ended, with what it printed last where it left by itself."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        code = self.process.returncode
        how = f"was killed ({signal.Signals(-code).name})" if code is not None and code < 0 else f"ended with code {code}"
        with suppress(OSError):
            lines = (self.folder / "logs" / f"{self.role}-{self.number}.txt").read_text(errors="replace").strip().splitlines()
            if lines and code != 0 and (code or 0) > 0:
                how += f": {lines[-1][:300]}"
        return f"{self.name} {how}"

    def dismiss(self) -> None:
        """Asks it to leave."""
        with suppress(OSError):
            send(self.channel, Message("quit"))

    def end(self) -> None:
        """Kills what is left of it, and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()


def too_many_lost(folder: Path, role: Role, count: int, last: ProcessLost) -> UserError:
    """What ends a run whose processes get nothing done any more."""
    logs = folder / "logs"
    told = f"{count} {CALLED[role]}{'s' if role == 'worker' else 'es'} were lost one after another; the last: {last}"
    return UserError(f"{told}. What they said is in {logs}. Mend that, and 'upslope resume {folder}' goes on.")
