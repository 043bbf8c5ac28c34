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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from upslope.runtime.sandbox.limits import Finished, Limits, SandboxError
from upslope.runtime.sandbox.memory import memory_keeper
from upslope.runtime.sandbox.pool import Sandbox, default_slots
from upslope.runtime.sandbox.users import user_range

SMALL = Limits(seconds=4.0, cpu=1, memory=96, scratch=4, processes=24, files=32, output=1)
"""Under which the probes run: small enough to be met soon."""
IMPATIENT_SECONDS = 1.0
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
class Probe:
    """Something a program tries.

    Fields:
        name: what is promised, in a word or two.
        tries: what the program does, for people.
        program: its text, in which ``BAIT`` is what was laid out for it.
        holds: whether it was stopped, from how it ended.
        set_to: the limit in numbers, if it has one.
    """

    name: str
    tries: str
    program: str
    holds: Callable[[Finished], bool]
    set_to: str = ""


@dataclass(frozen=True)
class Probed:
    """What came of a probe."""

    name: str
    set_to: str
    tries: str
    outcome: str
    holds: bool


def said(word: str) -> Callable[[Finished], bool]:
    """The program was let through to its end and says that it was stopped."""
    return lambda finished: finished.good and finished.stdout.strip().startswith(word)


def ended_by(*reasons: str) -> Callable[[Finished], bool]:
    return lambda finished: finished.reason in reasons


PROBES = (
    Probe("runs", "adds two numbers", "print('fine', 2 + 2)", said("fine 4")),
    Probe(
        "user",
        "asks who it is and what it may do",
        """
import os
powers = next(line for line in open("/proc/self/status") if line.startswith("CapEff")).split()[1]
same = os.getuid() == 0 or int(powers, 16)
print("user", os.getuid(), "with powers" if same else "without powers") if not same else print("is root or has powers", powers)
""",
        said("user"),
    ),
    Probe(
        "files",
        "reads a file of this machine, its home folders and settings, and writes beside its own folder",
        """
import os
found = [path for path in (BAIT["file"], "/etc/passwd", "/root", "/home", "/var", "/sys/kernel") if os.path.exists(path)]
for path in ("/mine", "/dev/mine", "/usr/lib/mine"):
    try:
        open(path, "w").write("x")
        found.append(path)
    except OSError:
        pass
print("found " + ", ".join(found) if found else "nothing found")
""",
        said("nothing"),
    ),
    Probe(
        "links",
        "makes a symbolic link to a file of this machine and reads through it",
        """
import os
os.symlink(BAIT["file"], "/tmp/link")
os.symlink("/proc/1/root" + BAIT["file"], "/tmp/other")
found = []
for link in ("/tmp/link", "/tmp/other"):
    try:
        found.append(open(link).read())
    except OSError:
        pass
print("read " + found[0] if found else "nothing read")
""",
        said("nothing"),
    ),
    Probe(
        "network",
        "calls a port of this machine and an address outside",
        """
import socket
reached = []
for address in (("127.0.0.1", BAIT["port"]), ("1.1.1.1", 53)):
    try:
        socket.create_connection(address, timeout=1).close()
        reached.append(address)
    except OSError as problem:
        why = problem
print("reached", reached) if reached else print("nothing reached:", why)
""",
        said("nothing"),
    ),
    Probe(
        "local sockets",
        "calls a unix socket of this machine that has no file, and opens sockets to the machine below",
        """
import socket
reached = []
with socket.socket(socket.AF_UNIX) as one:
    try:
        one.connect("\\0" + BAIT["abstract"])
        reached.append("unix")
    except OSError:
        pass
for family in (16, 17, 38, 40):
    try:
        socket.socket(family, socket.SOCK_RAW if family in (16, 17) else socket.SOCK_STREAM).close()
        reached.append(family)
    except OSError:
        pass
print("reached", reached) if reached else print("nothing reached")
""",
        said("nothing"),
    ),
    Probe(
        "other processes",
        "looks for the processes of this machine and sends them signals",
        """
import os
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
try:
    os.kill(BAIT["process"], 0)
    print("reached process", BAIT["process"])
except OSError:
    print("sees", len(seen), "processes of its own" if len(seen) < 8 else "processes") if len(seen) < 8 else print("many", seen)
""",
        said("sees"),
    ),
    Probe(
        "system calls",
        "asks for a new user namespace, to trace, to mount, for rings, keys, page faults and programs in the kernel",
        """
import ctypes, platform
column = 0 if platform.machine() == "x86_64" else 1
calls = {"unshare": (272, 97), "ptrace": (101, 117), "mount": (165, 40), "bpf": (321, 280), "io_uring_setup": (425, 425),
         "keyctl": (250, 219), "userfaultfd": (323, 282), "setns": (308, 268), "memfd_create": (319, 279)}
first = {"unshare": 0x10000000, "bpf": 99, "io_uring_setup": 0, "keyctl": 0, "setns": -1}
libc = ctypes.CDLL(None, use_errno=True)
through = []
for name, numbers in calls.items():
    ctypes.set_errno(0)
    done = libc.syscall(numbers[column], ctypes.c_long(first.get(name, 0)), 0, 0, 0, 0, 0)
    if done >= 0 or ctypes.get_errno() != 1:
        through.append((name, done, ctypes.get_errno()))
print("through", through) if through else print("all", len(calls), "refused")
""",
        said("all"),
    ),
    Probe(
        "processes",
        "forks until it cannot",
        """
import os, time
made = 0
try:
    while made < 400:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError:
    print("stopped after", made)
""",
        said("stopped"),
        f"{SMALL.processes} processes",
    ),
    Probe(
        "memory of a process",
        "takes ten times the memory it may",
        f"""
try:
    taken = b"x" * ({10 * SMALL.memory} << 20)
except MemoryError:
    print("stopped: MemoryError")
""",
        said("stopped"),
        f"{SMALL.memory} MB",
    ),
    Probe(
        "memory of all processes",
        "forks, and each process takes less than one may",
        f"""
import os, time
for _ in range(8):
    if os.fork() == 0:
        taken = b"x" * ({SMALL.memory // 2} << 20)
        time.sleep(30)
time.sleep(2.5)
""",
        ended_by("memory"),
        f"{SMALL.memory} MB",
    ),
    Probe(
        "scratch space",
        "fills its folder and the shared memory with files",
        """
written = []
for folder in ("/tmp", "/dev/shm"):
    total = 0
    try:
        for number in range(40):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(b"x" * (1 << 20))
            total += 1
        written = None
        break
    except OSError as problem:
        written.append(total)
print("written", total, "MB and more") if written is None else print("stopped after", *written, "MB")
""",
        said("stopped"),
        f"{SMALL.scratch} MB",
    ),
    Probe(
        "size of a file",
        "makes a file longer than one may be, without writing it",
        f"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    open("/tmp/long", "wb").truncate({4 * SMALL.scratch} << 20)
    print("made")
except OSError as problem:
    print("stopped:", problem.strerror)
""",
        said("stopped"),
        f"{SMALL.scratch} MB",
    ),
    Probe(
        "open files",
        "opens files until it cannot",
        """
files = []
try:
    while len(files) < 4000:
        files.append(open("/dev/null"))
    print("opened", len(files))
except OSError:
    number = len(files)
    files.clear()
    print("stopped after", number)
""",
        said("stopped"),
        f"{SMALL.files} files",
    ),
    Probe("computing", "computes for ever", "while True: pass", ended_by("cpu"), f"{SMALL.cpu} s"),
    Probe(
        "output",
        "prints for ever",
        "import sys\nwhile True: sys.stdout.write('x' * 10000)",
        ended_by("output"),
        f"{SMALL.output} MB",
    ),
)
IMPATIENT = Probe("time", "sleeps, deaf to signals", """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
time.sleep(60)
""", ended_by("seconds"), f"{IMPATIENT_SECONDS:g} s")  # fmt: skip
STAYS = Probe("leaves nothing", "leaves a process of its own session behind", """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for stream in range(3):
            os.close(stream)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", BAIT["token"]])
    os._exit(0)
os.wait()
print("left one behind")
""", lambda finished: finished.good)  # fmt: skip


def check(make: Callable[[Limits, int], Sandbox] | None = None) -> list[Probed]:
    """Tries everything, in a few slots at a time.

    Args:
        make: makes the sandbox that is tried, of limits and slots; by default the one that programs run in.
    """
    make = make or (lambda limits, slots: Sandbox(limits, slots, checked=False))
    slots = min(MOST_SLOTS, max(2, default_slots()))
    with _laid_out() as bait, make(SMALL, slots) as sandbox, make(_impatient(), 1) as impatient:
        waiting = impatient.submit(_text(IMPATIENT, bait))
        running = [(probe, sandbox.submit(_text(probe, bait))) for probe in (*PROBES, STAYS)]
        found = [_probed(probe, each.result()) for probe, each in [*running, (IMPATIENT, waiting)]]
        return [_nobody_stayed(each, bait.token) if each.name == STAYS.name else each for each in found]


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
