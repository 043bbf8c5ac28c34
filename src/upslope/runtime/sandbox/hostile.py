"""Programs that try what the sandbox promises to prevent, and how to tell from their end that they were stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upslope.runtime.sandbox.limits import Finished, Limits

SMALL = Limits(seconds=60.0, cpu=1, memory=96, scratch=4, processes=24, files=32, output=1)
"""Under which they run: small enough to be met soon, but for the clock, since a busy machine must not look like a broken limit."""
IMPATIENT_SECONDS = 1.0


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
        "calls a port of this machine and looks for a way outside",
        """
import socket
ways = [line.partition(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
reached = [name for name in ways if name not in ("lo", "sit0", "tunl0", "gre0", "gretap0", "erspan0", "ip6tnl0", "ip6gre0")]
try:
    socket.create_connection(("127.0.0.1", BAIT["port"]), timeout=1).close()
    reached.append("a port of this machine")
except OSError as problem:
    why = problem
print("reached", *reached) if reached else print("nothing reached:", why)
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
            time.sleep(60)
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
had, told = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        taken = b"x" * ({SMALL.memory // 2} << 20)
        os.write(told, b".")
        time.sleep(60)
for _ in range(8):
    os.read(had, 1)
print("all had it")
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
