"""The command lines that start a sandboxed interpreter: bubblewrap around setpriv and prlimit around Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from upslope.runtime.sandbox.limits import MEGABYTE, Limits, SandboxError

PACKAGES = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
"""Tools, and the packages of Debian and most others that bring them."""
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64")
ALIASES = ("/bin", "/lib", "/lib32", "/lib64")
"""Of today's systems links into ``/usr``, of older ones folders."""
SOMEBODY = 65_534
"""Who a program is where there is one user only."""
POWERS = ("NET_ADMIN", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_RESOURCE")
"""What the zygote needs to make a program's surroundings and to give itself up."""
PYTHON = "/py"
"""Where the interpreter's prefix is inside: at home it may be below a folder that a slot's user cannot read."""


@dataclass(frozen=True)
class Means:
    """What a sandbox is made of. All of it is there unless a test takes one away to see that its absence is noticed.

    Fields:
        user: the user number a program runs as; nothing where this process can become nobody else: a user namespace must do then.
    """

    user: int | None = None
    processes: bool = True
    network: bool = True
    files: bool = True
    seccomp: bool = True
    limits: bool = True
    sized: bool = True


def missing_tools(weak: bool = False) -> list[str]:
    """Packages to install before programs can be run."""
    wanted = [tool for tool in PACKAGES if not weak or tool != "bwrap"]
    return sorted({PACKAGES[tool] for tool in wanted if shutil.which(tool) is None})


def check_tools(weak: bool = False) -> None:
    """Refuses a machine that lacks a tool, with the package that has it."""
    if sys.platform != "linux":
        raise SandboxError(
            f"programs are run in a sandbox of Linux's, and this is {sys.platform}. Use a Linux machine or container."
        )
    if packages := missing_tools(weak):
        raise SandboxError(
            "programs that a model wrote are run in a sandbox, which needs what is not installed here. Install with:\n"
            f"  apt-get install {' '.join(packages)}"
        )


def process_limits(limits: Limits) -> dict[str, tuple[int, int]]:
    """The limits of each process, softly and firmly. SIGXCPU comes a second before the end, so that it can be told apart."""
    firm = {
        "as": limits.memory * MEGABYTE,
        "core": 0,
        "fsize": limits.scratch * MEGABYTE,
        "memlock": 65_536,
        "msgqueue": 0,
        "nofile": limits.files,
        "nproc": limits.processes,
        "sigpending": 64,
    }
    return {"cpu": (limits.cpu, limits.cpu + 1), **{name: (value, value) for name, value in firm.items()}}


def python_command(limits: Limits, python: str) -> list[str]:
    """The interpreter under the limits of each process."""
    set_to = [f"--{name}={soft}:{hard}" for name, (soft, hard) in process_limits(limits).items()]
    return ["prlimit", *set_to, *interpreter(python)]


def interpreter(python: str) -> list[str]:
    """The interpreter that waits for a program, without a user's or a system's settings and packages."""
    return [python, "-I", "-S", "-c", launcher_text()]


def launcher_text() -> str:
    """`launcher`, which only the interpreter inside runs."""
    return _text_of("launcher.py")


@cache
def _text_of(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


def weak_command(limits: Limits) -> list[str]:
    """Limits only, in this user's name. Whoever started it takes it along when it dies."""
    return ["setpriv", "--pdeathsig", "KILL", "--no-new-privs", *python_command(limits, sys.executable)]


def sandbox_command(limits: Limits, means: Means, seccomp: int | None, information: int, begin: int) -> list[str]:
    """A sandboxed interpreter that waits for its one program.

    Args:
        seccomp, information, begin: open files: of the filter, of where bubblewrap says which process it made, and of what it waits
            for before it runs anything.
    """
    words = [*_bubblewrap(limits, means, information, begin), "--die-with-parent"]
    words += ["--seccomp", str(seccomp)] if seccomp is not None else []
    words += ["setpriv", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all"]
    if means.user is not None:
        words += ["--reuid", str(means.user), "--regid", str(means.user), "--clear-groups"]
    return words + (python_command(limits, python_inside()) if means.limits else interpreter(python_inside()))


def zygote_command(limits: Limits, means: Means, rules: bytes, information: int, begin: int, control: int) -> list[str]:
    """A sandboxed interpreter, still root, that forks for each program (`zygote`).

    It does not die with its parent by bubblewrap's means, which leave a process behind if the parent dies while they are set up: it
    ends when nobody holds the other end of its socket any more, and all that is in its sandbox with it.

    Args:
        rules: the filter of system calls. control: the open socket on which it is asked.
    """
    plan = {
        "user": means.user,
        "processes": means.processes,
        "network": means.network,
        "scratch": limits.scratch * MEGABYTE if means.sized else 0,
        "limits": {f"RLIMIT_{name.upper()}": each for name, each in process_limits(limits).items()} if means.limits else {},
        "filter": rules.hex() if means.seccomp else "",
        "launcher": launcher_text(),
    }
    powers = [word for power in POWERS for word in ("--cap-add", f"CAP_{power}")]
    words = [*_bubblewrap(limits, means, information, begin), "--cap-drop", "ALL", *powers]
    return [*words, python_inside(), "-I", "-S", "-c", _text_of("zygote.py"), str(control), json.dumps(plan)]


def _bubblewrap(limits: Limits, means: Means, information: int, begin: int) -> list[str]:
    spaces = ["ipc", "uts", "cgroup-try"]
    spaces += ["user"] if means.user is None else []
    spaces += (["pid"] if means.processes else []) + (["net"] if means.network else [])
    words = ["bwrap", *(f"--unshare-{space}" for space in spaces), "--new-session", "--hostname", "sandbox"]
    words += ["--uid", str(SOMEBODY), "--gid", str(SOMEBODY)] if means.user is None else []
    words += ["--clearenv", *_environment()]
    words += _binds() if means.files else [*_binds(), "--ro-bind", "/etc", "/etc"]
    words += _folders(limits, means)
    return [*words, "--info-fd", str(information), "--block-fd", str(begin)]


def _environment() -> list[str]:
    values = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        # Each thread's own arena would count 64 megabytes against the address space.
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
    }
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        values["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return [word for name, value in values.items() for word in ("--setenv", name, value)]


def _binds() -> list[str]:
    """What is there to read: libraries and tools of the system, and Python without the packages installed in it."""
    words = [*_readable_folder("/usr"), *_readable_folder("/etc")]
    words += [word for path in SYSTEM if Path(path).is_dir() for word in ("--ro-bind", path, path)]
    for path in ALIASES:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]  # else every library is looked for in a dozen folders
    prefix = Path(sys.base_prefix).resolve()
    if prefix == Path("/usr"):
        return words
    words += _readable_folder(PYTHON)
    for name in ("bin", "lib", "lib64"):
        if (prefix / name).is_dir() and not (name == "lib64" and (prefix / name).is_symlink()):
            words += ["--ro-bind", str(prefix / name), f"{PYTHON}/{name}"]
    for packages in _package_folders(prefix):
        words += ["--tmpfs", f"{PYTHON}/{packages}", "--remount-ro", f"{PYTHON}/{packages}"]
    return words


def _readable_folder(path: str) -> list[str]:
    """Made by itself: bubblewrap makes the parents of what it binds unreadable for others."""
    return ["--perms", "0755", "--dir", path]


def _package_folders(prefix: Path) -> list[str]:
    base = {"base": str(prefix), "platbase": str(prefix)}
    folders = {sysconfig.get_path(kind, vars=base) for kind in ("purelib", "platlib")}
    return sorted(str(Path(each).relative_to(prefix)) for each in folders if each.startswith(str(prefix)) and Path(each).is_dir())


def python_inside() -> str:
    """The interpreter's path inside of the sandbox."""
    prefix, name = Path(sys.base_prefix).resolve(), f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"/usr/bin/{name}" if prefix == Path("/usr") else f"{PYTHON}/bin/{name}"


def _folders(limits: Limits, means: Means) -> list[str]:
    words = ["--proc", "/proc", "--dev", "/dev"]
    size = ["--size", str(limits.scratch * MEGABYTE)] if means.sized else []
    for path in ("/tmp", "/dev/shm"):
        words += ["--perms", "1777", *size, "--tmpfs", path]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
