"""The first process of a team: it starts the others, tells them what to do, and ends with all of them where one is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime.environment import ALLOCATOR
from upslope.runtime.messages import Closed, Message, receive, send
from upslope.runtime.process_file import say_learners
from upslope.runtime.team import ProcessTeam

SILENT_SECONDS = 60.0
"""A learner that has said nothing for so long hangs: one that works says so every second."""
STARTING_SECONDS = 600.0
"""What a learner gets to load the model."""
PATIENCE = 5.0
"""Seconds that a learner gets to leave when the run ends, and that the reason of a loss is waited for."""


@dataclass(frozen=True)
class TeamPlan:
    """How the other learners are started.

    Fields:
        folder: Of the run: learners make the policy and its method from its ``run.toml``.
        size: How many learners there are, the run itself among them.
        threads: Torch threads of each.
        trusted: Code in the folder that this machine did not write may run.
        device: Where the run's own policy is.
    """

    folder: Path
    size: int
    threads: int = 1
    trusted: bool = False
    device: torch.device | str = "cpu"

    def command(self, rank: int, channel: int) -> Sequence[str]:
        trusted = ["--trust"] if self.trusted else []
        return [sys.executable, "-m", "upslope.run.learner", str(self.folder), str(channel), str(rank), str(self.size), *trusted]


class LearnerLost(UserError):
    """One of several learners is gone, and with it the run: every gradient is a sum over all of them."""


@dataclass(eq=False)
class _Other:
    """Another learner."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: threading.Event = field(default_factory=threading.Event)


class LeadingTeam(ProcessTeam):
    """The team as the run itself sees it.

    Args:
        plan: How the others are started; they begin to load at once.
    """

    silent_seconds = SILENT_SECONDS

    def __init__(self, plan: TeamPlan):
        super().__init__(0, plan.size, plan.device)
        self.plan = plan
        self.problem: BaseException | None = None
        """What ended the team, if it has ended."""
        self._changed, self._closed = threading.Condition(), False
        self._meeting = Path(tempfile.mkdtemp(prefix="upslope-learners-"))
        self.others = [self._start(rank) for rank in range(1, plan.size)]
        say_learners(plan.folder, self.pids())
        for other in self.others:
            threading.Thread(target=self._listen, args=(other,), daemon=True).start()

    def pids(self) -> list[int]:
        """Of all learners, by rank."""
        return [os.getpid(), *(other.process.pid for other in self.others)]

    def _start(self, rank: int) -> _Other:
        ours, theirs = socket.socketpair()
        logs = self.plan.folder / "logs"
        logs.mkdir(exist_ok=True)
        environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(self.plan.threads), "PYTHONUNBUFFERED": "1"}
        with theirs, (logs / f"learner-{rank}.txt").open("ab") as log:
            process = subprocess.Popen(
                self.plan.command(rank, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        return _Other(rank, process, ours)

    # -- with the others -------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Waits until all others are there, and begins to add up with them."""
        for other in self.others:
            other.ready.wait(STARTING_SECONDS)
            if self.problem is not None:
                raise self.problem
            if not other.ready.is_set():
                raise self._lost(other, f"was not ready within {STARTING_SECONDS:g} s")
        meeting = self._meeting / "store"
        self.tell("join", lambda: {"meeting": str(meeting)})
        self.join(meeting)

    def tell(self, kind: str, data: Callable[[], JsonDict]) -> None:
        message = Message(kind, data())
        for other in self.others:
            try:
                send(other.channel, message)
            except OSError as problem:
                raise self.gone(problem) from None

    def gone(self, problem: Exception) -> BaseException:
        """Who hears of it may be faster than who knows why."""
        with self._changed:
            self._changed.wait_for(lambda: self.problem is not None, PATIENCE)
            return self.problem or problem

    # -- the thread of each of them --------------------------------------------------------------------------------------

    def _listen(self, other: _Other) -> None:
        other.channel.settimeout(STARTING_SECONDS)
        try:
            while True:
                message = receive(other.channel)
                if message.kind == "refused":
                    return self._end(UserError(message.data["why"]))
                if message.kind == "raised":
                    return self._end(RuntimeError(f"learner {other.rank} failed:\n{message.data['why']}"))
                if message.kind == "ready":
                    other.channel.settimeout(self.silent_seconds)
                    other.ready.set()
        except TimeoutError:
            self._end(self._lost(other, f"said nothing for {other.channel.gettimeout():g} s"))
        except (Closed, OSError, ValueError):
            if not self._closed:
                self._end(self._lost(other, self._last_words(other)))

    def _lost(self, other: _Other, how: str) -> LearnerLost:
        return LearnerLost(
            f"learner {other.rank} (process {other.process.pid}) {how}, and every update needs all {self.size} of them. What it "
            f"said is in {self.plan.folder / 'logs'}. 'upslope resume {self.plan.folder}' goes on from the last checkpoint."
        )

    def _last_words(self, other: _Other) -> str:
        with suppress(subprocess.TimeoutExpired):
            other.process.wait(PATIENCE)
        code = other.process.returncode
        return f"was killed ({signal.Signals(-code).name})" if code is not None and code < 0 else f"ended with code {code}"

    def _end(self, problem: BaseException) -> None:
        """The first reason counts; nobody may go on waiting for sums that will never come."""
        with self._changed:
            if self._closed or self.problem is not None:
                return
            self.problem = problem
            self._changed.notify_all()
        for other in self.others:
            other.ready.set()  # nobody waits for them any more
            _kill(other)
        if self.device.type == "cuda":
            abort_group()

    def close(self) -> None:
        """Ends all others."""
        with self._changed:
            self._closed = True
        for other in self.others:
            with suppress(OSError):
                send(other.channel, Message("quit"))
        self.leave()
        for other in self.others:
            with suppress(subprocess.TimeoutExpired):
                other.process.wait(PATIENCE)
            _kill(other)
            other.process.wait()
            with suppress(OSError):
                other.channel.shutdown(socket.SHUT_RDWR)
            other.channel.close()
        shutil.rmtree(self._meeting, ignore_errors=True)


def abort_group() -> None:
    """Ends what waits on a GPU for processes that are gone. Gloo needs no such thing: its connections break."""
    from torch import distributed

    if (group := distributed.group.WORLD) is not None:
        with suppress(Exception):  # the reason is known already, whatever becomes of this
            group.abort()


def _kill(other: _Other) -> None:
    """What is left of a learner, and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(other.process.pid, signal.SIGKILL)
