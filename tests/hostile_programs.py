"""Programs that mean harm, and a look at what they may have left behind. For the tests of the sandbox and ``make torture``."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from upslope.runtime.sandbox.command import missing_tools
from upslope.runtime.sandbox.memory import PREFIX, own_groups
from upslope.runtime.sandbox.users import RANGES, is_held, user_range

LACKS = missing_tools()
needs_sandbox = pytest.mark.skipif(
    bool(LACKS), reason=f"programs cannot be sandboxed here: apt-get install {' '.join(LACKS)}, and run the tests again"
)
TOKEN = "upslope-hostile"
"""In the name of every file and the command line of every program that a hostile one makes."""

PROGRAMS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
    "    except RuntimeError: pass",
    "memory bomb": "held = []\nwhile True: held.append(b'x' * (8 << 20))",
    "memory of many": "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        held = b'x' * (20 << 20)\n"
    "        time.sleep(9)\ntime.sleep(9)",
    "disk bomb": f"n = 0\nwhile True:\n    n += 1\n    try: open(f'/tmp/{TOKEN}-{{n}}', 'wb').write(b'x' * (1 << 20))\n"
    "    except OSError: pass",
    "many small files": f"n = 0\nwhile True:\n    n += 1\n    open(f'/dev/shm/{TOKEN}-{{n}}', 'w').close()",
    "output bomb": "while True: print('x' * 100_000)",
    "error bomb": "import os\nwhile True: os.write(2, b'x' * 100_000)",
    "deaf": "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    "kills all": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kills its parent": "import os, signal\nfor p in (1, os.getppid()):\n    for s in (9, 15, 19):\n        try: os.kill(p, s)\n"
    "        except OSError: pass",
    "kills numbers": "import os\nfor p in range(2, 40000):\n    if p != os.getpid():\n        try: os.kill(p, 9)\n"
    "        except OSError: pass",
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    f"        os.execv('/bin/sleep', ['{TOKEN}', '300'])\n    os._exit(0)",
    "daemon that prints": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        os.write(1, b'.')\n"
    "        time.sleep(.01)",
    "zombies": "import os, time\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(9)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "stops its group": "import os, signal\nos.killpg(0, signal.SIGSTOP)",
    # The second link goes through the root of the first process: outside of the sandbox, if its own were not the first.
    "links out": f"import os\nos.symlink('/', '/tmp/{TOKEN}')\nopen('/tmp/{TOKEN}/tmp/{TOKEN}-out', 'w').write('x')\n"
    f"os.symlink(os.path.join('/proc/1', 'root', 'tmp'), '/tmp/{TOKEN}-2')\nopen('/tmp/{TOKEN}-2/{TOKEN}-out', 'w').write('x')",
    "closes everything": "import os\nfor n in range(64):\n    try: os.close(n)\n    except OSError: pass\nwhile True: pass",
    "open files": "import time\nheld = []\nwhile True:\n    try: held.append(open('/dev/null'))\n    except OSError: time.sleep(9)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "aborts": "import os\nos.abort()",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "threads at exit": "import threading, time\nthreading.Thread(target=lambda: time.sleep(99)).start()",
    "work at exit": "import atexit, time\natexit.register(lambda: time.sleep(99))",
    "namespaces": "import ctypes\nfor flag in (0x10000000, 0x20000): assert ctypes.CDLL(None).unshare(flag) == -1",
    "mounts": f"import ctypes, os\nos.mkdir('/tmp/{TOKEN}')\n"
    f"assert ctypes.CDLL(None).mount(b'none', b'/tmp/{TOKEN}', b'tmpfs', 0, None) == -1",
    "listens": f"import socket, time\na = socket.socket(socket.AF_UNIX); a.bind('\\0{TOKEN}'); a.listen()\n"
    "b = socket.create_server(('', 9999)); time.sleep(99)",
    "raises its limits": "import resource\nfor n in range(16):\n    try: resource.setrlimit(n, (-1, -1))\n"
    "    except (OSError, ValueError): pass\nheld = []\nwhile True: held.append(b'x' * (64 << 20))",
    "locks its folder": f"import os\nos.mkdir('/tmp/{TOKEN}'); open('/tmp/{TOKEN}/x', 'w'); os.chmod('/tmp/{TOKEN}', 0)",
    "deep folders": f"import os\nwhile True:\n    os.mkdir('{TOKEN}'); os.chdir('{TOKEN}')",
    "full pipes": "import os\nwhile True:\n    try:\n        r, w = os.pipe()\n        os.set_blocking(w, False)\n"
    "        os.write(w, b'x' * 65536)\n    except OSError: pass",
    "endless number": "print(len(str(9 ** 9 ** 9)))",
    "becomes another": f"import os\nos.execv('/bin/sh', ['{TOKEN}', '-c', 'trap \"\" TERM; while :; do :; done'])",
    "reads memory": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
}  # fmt: skip


@dataclass(frozen=True)
class Traces:
    """What a program could leave on the machine, as far as it would be the sandbox's fault."""

    processes: frozenset[str]
    files: frozenset[str]
    mounts: frozenset[str]
    groups: frozenset[str]
    users: frozenset[int]
    open_files: frozenset[str]

    @classmethod
    def now(cls, own: range | None = None) -> Traces:
        """As it is; of user numbers that only this process uses, all that runs in their name."""
        users = frozenset(own or ())
        return cls(
            frozenset(_processes(users)),
            frozenset(_files()),
            frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
            frozenset(str(path) for folder, _ in own_groups() for path in folder.glob(f"{PREFIX}{os.getpid()}-*")),
            frozenset(number for number in users if is_held(number)),
            frozenset(_open_files()),
        )

    def since(self, before: Traces) -> dict[str, frozenset[str] | frozenset[int]]:
        """What is here and was not before, by kind. What went away in the meantime may be anybody's: a file that an earlier
        test left open closes when its memory is collected."""
        came = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return {name: found for name, found in came.items() if found}


def _processes(users: frozenset[int]) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, owner = (folder / "cmdline").read_bytes(), folder.stat().st_uid
        except OSError:
            continue
        if words.startswith(TOKEN.encode()) or owner in users:
            found.append(folder.name)
    return found


def _open_files() -> list[str]:
    """What this process holds open: paths, and pipes and sockets by their numbers."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that listed them is closed by now
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def _files() -> list[str]:
    folders = {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/", os.getcwd()}
    return [str(path) for folder in folders for path in Path(folder).glob(f"{TOKEN}*")]


def own_users(slots: int) -> range | None:
    """User numbers that no other process on this machine gives to its slots: what runs in their name is this process's fault.
    Nothing where this process cannot become anybody else."""
    found = user_range()
    if found is None or found.start != RANGES[0][0]:
        return None
    start = 1_850_000_000 + os.getpid() % 4_000_000 * 10
    return range(start, start + slots)
