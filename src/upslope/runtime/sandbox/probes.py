"""Programs that try to break the sandbox, one for each thing that it promises, and whether they were stopped.

``upslope sandbox check`` prints them all. Every process makes them once before it runs its first program, and refuses to run any
where one of them gets through: a limit that is set and does not hold is worse than none.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from upslope.runtime.sandbox.hostile import IMPATIENT, IMPATIENT_SECONDS, PROBES, SMALL, STAYS, Probe
from upslope.runtime.sandbox.limits import Finished, Limits, SandboxError
from upslope.runtime.sandbox.memory import memory_keeper
from upslope.runtime.sandbox.pool import Sandbox, default_slots
from upslope.runtime.sandbox.users import user_range

MOST_SLOTS = 4


@dataclass(frozen=True)
class Bait:
    """What is laid out on this side for programs to find, though they must not.

    Fields:
        file: a file that anybody may read.
        port: of 127.0.0.1, where somebody listens.
        abstract: a unix socket without a file, where somebody listens.
        process: the number of this process.
        token: a word by which a process that stayed behind is found.
    """

    file: str
    port: int
    abstract: str
    process: int
    token: str


@dataclass(frozen=True)
class Probed:
    """What came of a probe."""

    name: str
    set_to: str
    tries: str
    outcome: str
    holds: bool


def check(make: Callable[[Limits, int], Sandbox] | None = None, only: Collection[str] = ()) -> list[Probed]:
    """Tries everything, in a few slots at a time.

    Args:
        make: makes the sandbox that is tried, of limits and slots; by default the one that programs run in.
        only: names of what to try; by default all.
    """
    make = make or (lambda limits, slots: Sandbox(limits, slots, checked=False))
    chosen = [probe for probe in (*PROBES, STAYS, IMPATIENT) if not only or probe.name in only]
    slots = min(MOST_SLOTS, max(2, default_slots()), len(chosen))
    with _laid_out() as bait, make(SMALL, slots) as sandbox, make(_impatient(), 1) as impatient:
        running = [(probe, (impatient if probe is IMPATIENT else sandbox).submit(_text(probe, bait))) for probe in chosen]
        found = [_probed(probe, each.result()) for probe, each in running]
        return [_nobody_stayed(each, bait.token) if each.name == STAYS.name else each for each in found]


def table(found: list[Probed]) -> str:
    """For people: a line for each limit, with what it did to a program that tried to break it."""
    names, limits = max(len(each.name) for each in found), max(len(each.set_to) for each in found)
    lines = [
        f"{'holds' if each.holds else 'BROKEN':<6}  {each.name:<{names}}  {each.set_to:<{limits}}  {each.tries}: {each.outcome}"
        for each in found
    ]
    broken = [each.name for each in found if not each.holds]
    end = f"{len(broken)} of {len(found)} do not hold here ({', '.join(broken)}): no program is run."
    return "\n".join([*lines, "", end if broken else f"All {len(found)} hold."])


def means_here() -> list[str]:
    """How limits that can be set in more than one way are set here, a line each."""
    keeper = memory_keeper(SMALL, f"look-{threading.get_ident()}")
    keeper.close()
    users = user_range()
    who = f"a number for each slot, from {users.start}" if users is not None else "nobody, in a user namespace (without root)"
    return [f"user: {who}", f"memory: {keeper.words}"]


def demand_that_limits_hold() -> None:
    """Refuses to go on where a limit does not hold; looked at once in a process."""
    with _once:
        if os.getpid() not in _held:
            if broken := [each for each in check() if not each.holds]:
                names = "; ".join(f"{each.name}: a program that {each.tries} {each.outcome}" for each in broken)
                raise SandboxError(
                    f"the sandbox does not hold here, so nothing is run in it. {names}. 'upslope sandbox check' shows all of it."
                )
            _held.add(os.getpid())


_once = threading.Lock()
_held: set[int] = set()
"""Processes in which it was seen to hold: this one, or the one that this was forked from, which does not count."""


def _impatient() -> Limits:
    return Limits(seconds=IMPATIENT_SECONDS, cpu=10, memory=SMALL.memory, scratch=SMALL.scratch)


def _text(probe: Probe, bait: Bait) -> str:
    return f"BAIT = {vars(bait)!r}\n{probe.program}"


def _probed(probe: Probe, finished: Finished) -> Probed:
    holds = probe.holds(finished)
    text = " ".join(finished.stdout.split())[:200] if finished.reason != "output" else ""
    if finished.reason != "ended":
        outcome = f"was ended by the limit of {finished.reason} after {finished.seconds:.1f} s"
    elif finished.status:
        last = (finished.stderr.strip().splitlines() or ["without a word"])[-1]
        outcome = f"ended with status {finished.status}: {last[:120]}"
    else:
        outcome = f"said: {text}" if text else "came to its end"
    return Probed(probe.name, probe.set_to, probe.tries, outcome, holds)


def _nobody_stayed(probed: Probed, token: str) -> Probed:
    """The verdict on what a program left behind, by looking at this machine's processes."""
    left = [name for name in os.listdir("/proc") if name.isdigit() and token.encode() in _command_line(name)]
    outcome = f"left process {left[0]}" if left else "left nothing: the process went with it"
    return Probed(probed.name, probed.set_to, probed.tries, outcome if probed.holds else probed.outcome, probed.holds and not left)


def _command_line(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def _laid_out() -> Iterator[Bait]:
    token = uuid.uuid4().hex
    with (
        tempfile.TemporaryDirectory(prefix="upslope-bait-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        os.chmod(folder, 0o755)
        file = Path(folder) / "secret"
        file.write_text(token)
        abstract.bind(f"\0{token}")
        abstract.listen()
        yield Bait(str(file), listening.getsockname()[1], token, os.getpid(), token)
