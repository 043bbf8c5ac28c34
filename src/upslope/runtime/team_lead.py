"""The first process of a team: it starts the others, tells them what to do, and ends with all of them where one is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime.messages import Closed, Message, receive, send
from upslope.runtime.process_file import say_processes
from upslope.runtime.team import ProcessTeam
from upslope.runtime.worker_process import PATIENCE, WorkerProcess, raise_if_it_failed

SILENT_SECONDS = 60.0
"""A learner that has said nothing for so long hangs: one that works says so every second."""
STARTING_SECONDS = 600.0
"""What a learner gets to load the model."""


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

    def command(self, rank: int, channel: int) -> list[str]:
        trusted = ["--trust"] if self.trusted else []
        return [sys.executable, "-m", "upslope.run.learner", str(self.folder), str(channel), str(rank), str(self.size), *trusted]


class LearnerLost(UserError):
    """One of several learners is gone, and with it the run: every gradient is a sum over all of them."""


class _Other(WorkerProcess):
    """Another learner."""

    def __init__(self, plan: TeamPlan, rank: int):
        log = plan.folder / "logs" / f"learner-{rank}.txt"
        super().__init__(f"learner {rank}", lambda channel: plan.command(rank, channel), log, plan.threads)
        self.ready = threading.Event()

    def kill(self) -> None:
        """At once, with all that it has started; `end` clears away what is left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


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
        self.others = [_Other(plan, rank) for rank in range(1, plan.size)]
        say_processes(plan.folder, "learners", self.pids())
        for other in self.others:
            threading.Thread(target=self._listen, args=(other,), daemon=True).start()

    def pids(self) -> list[int]:
        """Of all learners, by rank."""
        return [os.getpid(), *(other.pid for other in self.others)]

    # -- with the others -------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Waits until all others are there, and begins to add up with them."""
        for other in self.others:
            other.ready.wait(STARTING_SECONDS)
            if self.problem is not None:
                raise self.problem
            if not other.ready.is_set():
                raise self._lost(f"{other.name} was not ready within {STARTING_SECONDS:g} s")
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
                raise_if_it_failed(other.name, message)
                if message.kind == "ready":
                    other.channel.settimeout(self.silent_seconds)
                    other.ready.set()
        except TimeoutError:
            self._end(self._lost(f"{other.name} said nothing for {self.silent_seconds:g} s"))
        except (Closed, OSError, ValueError):
            if not self._closed:
                self._end(self._lost(other.last_words()))
        except (UserError, RuntimeError) as problem:
            self._end(problem)

    def _lost(self, how: str) -> LearnerLost:
        needed = f"every update needs all {self.size} of them, so that the run has ended"
        again = f"'upslope resume {self.plan.folder}' goes on from the last checkpoint"
        return LearnerLost(f"{how}; {needed}. What it said is in {self.plan.folder / 'logs'}. {again}.")

    def _end(self, problem: BaseException) -> None:
        """The first reason counts; nobody may go on waiting for sums that will never come."""
        with self._changed:
            if self._closed or self.problem is not None:
                return
            self.problem = problem
            self._changed.notify_all()
        for other in self.others:
            other.ready.set()  # nobody waits for them any more
            other.kill()
        if self.device.type == "cuda":
            abort_group()

    def close(self) -> None:
        """Ends all others."""
        with self._changed:
            self._closed = True
        for other in self.others:
            other.leave()
        self.leave()
        for other in self.others:
            with suppress(subprocess.TimeoutExpired):
                other.process.wait(PATIENCE)
            other.end()
        shutil.rmtree(self._meeting, ignore_errors=True)


def abort_group() -> None:
    """Ends what waits on a GPU for processes that are gone. Gloo needs no such thing: its connections break."""
    from torch import distributed

    if (group := distributed.group.WORLD) is not None:
        with suppress(Exception):  # the reason is known already, whatever becomes of this
            group.abort()
