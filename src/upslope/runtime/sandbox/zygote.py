"""What runs inside of a slot's sandbox as root: an interpreter that is forked for each program, so that none has to start.

Like `launcher`, which each fork becomes, this file is not imported there: its text is handed to the interpreter. It never runs a
line that a model wrote and never reads what one left: a program gets namespaces of its own (processes, network, IPC, host
name, mounts) with a ``/tmp``, a ``/dev/shm`` and a ``/proc`` made for it, then the slot's user, no capabilities, the limits and the
filter of system calls, and only then its text. Its first process takes all others along when it ends.

A request on the control socket brings stdin, stdout and stderr. The answer is ``+`` with a handle on the first process, then, when
that has ended, its status; or ``!`` and what went wrong.
"""

import ctypes
import fcntl
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PROCESSES, NEW_NETWORK = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000,
)  # fmt: skip
PRIVATE, RECURSIVE, NO_SUID, NO_DEVICES, NO_EXECUTION = 1 << 18, 1 << 14, 2, 4, 8
DUMPABLE, FILTER, DROP_FROM_BOUNDING_SET, NO_NEW_PRIVILEGES, PARENT_DEATH = 4, 22, 24, 38, 1
UP_AND_RUNNING, GET_FLAGS, SET_FLAGS = 0x41, 0x8913, 0x8914
LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name, *arguments):  # type: ignore[no-untyped-def]
    if getattr(LIBC, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _set(option, *values):  # type: ignore[no-untyped-def]
    _call("prctl", option, *(ctypes.c_ulong(value) for value in (*values, *[0] * (4 - len(values)))))


def _separate(plan):  # type: ignore[no-untyped-def]
    flags = NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC
    flags |= (NEW_PROCESSES if plan["processes"] else 0) | (NEW_NETWORK if plan["network"] else 0)
    _call("unshare", flags)


def _mount(plan):  # type: ignore[no-untyped-def]
    _call("mount", b"none", b"/", None, ctypes.c_ulong(PRIVATE | RECURSIVE), None)
    size = b",size=%d" % plan["scratch"] if plan["scratch"] else b""
    for folder in (b"/tmp", b"/dev/shm"):
        _call("mount", b"tmpfs", folder, b"tmpfs", ctypes.c_ulong(NO_SUID | NO_DEVICES), b"mode=1777" + size)
    _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(NO_SUID | NO_DEVICES | NO_EXECUTION), None)
    os.chdir("/tmp")


def _raise_loopback():  # type: ignore[no-untyped-def]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, SET_FLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))


def _expose_to_shortage(score):  # type: ignore[no-untyped-def]
    """Who is ended first where memory runs out: a program, and not whoever made it. Not every root may say so."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(score))
    except OSError:
        pass


def _give_up_everything(plan):  # type: ignore[no-untyped-def]
    """Limits, powers, user, filter: in this order, since each is the last thing that could be done with what was there before."""
    _expose_to_shortage(300)
    os.setsid()
    for name, (soft, hard) in plan["limits"].items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    for number in range(64):
        if LIBC.prctl(DROP_FROM_BOUNDING_SET, *map(ctypes.c_ulong, (number, 0, 0, 0))) < 0:
            break  # the kernel has no more
    os.setgroups([])
    os.setresgid(*[plan["user"]] * 3)
    os.setresuid(*[plan["user"]] * 3)
    _call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))
    _set(DUMPABLE, 1)  # else its own /proc/self would belong to root
    _set(NO_NEW_PRIVILEGES, 1)
    if rules := bytes.fromhex(plan["filter"]):
        held = ctypes.create_string_buffer(rules, len(rules))
        program = struct.pack("HxxxxxxP", len(rules) // 8, ctypes.addressof(held))
        _call("prctl", FILTER, ctypes.c_ulong(2), program, ctypes.c_ulong(0), ctypes.c_ulong(0))


def _become_program(plan, streams):  # type: ignore[no-untyped-def]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 4096)
    _give_up_everything(plan)
    main, leave, text = sys.modules["__main__"].__dict__, sys.exit, plan["launcher"]
    kept = {name: main[name] for name in ("__name__", "__builtins__", "__doc__", "__loader__", "__spec__", "__package__")}
    main.clear()  # the program shall find nothing of this file
    main.update(kept)
    exec(compile(text, "<launcher>", "exec"), main)
    leave(0)


def _first_process(plan, streams):  # type: ignore[no-untyped-def]
    """The first process of a program: makes its surroundings, and ends with the program's status and everybody else."""
    _set(PARENT_DEATH, signal.SIGKILL)
    _mount(plan)
    if plan["network"]:
        _raise_loopback()
    program = os.fork()
    if program == 0:
        _become_program(plan, streams)
    for stream in range(3):
        os.close(stream)
    os.closerange(3, 4096)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def _hold(control, plan, streams):  # type: ignore[no-untyped-def]
    """Stays outside of a program's namespaces to say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _set(PARENT_DEATH, signal.SIGKILL)
    _separate(plan)
    begin, go = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(go)
        os.read(begin, 1)
        os.close(begin)
        _first_process(plan, streams)
    for stream in streams:
        os.close(stream)
    socket.send_fds(control, [b"+"], [os.pidfd_open(first)])
    os.write(go, b"+")
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    control.send(b"%d" % code)
    os._exit(0)


def _serve(control, plan):  # type: ignore[no-untyped-def]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _expose_to_shortage(-1000)
    gc.freeze()  # collecting garbage would copy the pages that forks share
    control.send(b"ready")
    while True:
        asked, streams, _, _ = socket.recv_fds(control, 16, 3)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            _guarded(control, plan, streams)
        for stream in streams:
            os.close(stream)


def _guarded(control, plan, streams):  # type: ignore[no-untyped-def]
    """A fault of ours is told; a program's own end, which comes up through here, is left alone."""
    try:
        _hold(control, plan, streams)
    except OSError as problem:
        control.send(b"!" + str(problem).encode()[:500])
        os._exit(1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
