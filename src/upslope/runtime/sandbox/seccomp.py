"""The system calls that a sandboxed program is refused, as a program for the kernel's filter (seccomp, in classic BPF).

It is assembled by hand: bubblewrap takes the bytes, and so no library is needed. Everything that is not named here is allowed: the
filter closes doors that namespaces and limits leave open, above all those to new namespaces and to parts of the kernel that had
many faults.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

from upslope.runtime.sandbox.limits import SandboxError

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Operations: load a word of the call's description, three conditional jumps, the verdict."""
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Where the description has the call's number, the architecture, and eight bytes for each argument, the low half first."""
X32 = 0x40000000
"""Numbers from here on are the second set of calls that x86-64 has, which would get round a list of numbers."""
NEW_NAMESPACES = 0x7E020000
"""Flags of clone that ask for a namespace: mount, cgroup, uts, ipc, user, pid, net."""
FAMILIES = (1, 2, 10)
"""Sockets there may be: unix, IPv4, IPv6. Others (vsock, above all) are not bound to the network namespace."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""Requests of ioctl that type into a terminal."""

REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_create": (319, 279),  # with the next, memory that belongs to no process and that nobody could count
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Calls that fail with EPERM whatever their arguments, with their numbers on x86-64 and aarch64; nothing where there is none."""
LOOKED_INTO: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
"""Calls of which some uses are refused."""


@dataclass(frozen=True)
class Machine:
    """What the filter must know of a kind of processor."""

    audit: int
    column: int
    """Of the tables above."""


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}


def filter_bytes(machine: str = "") -> bytes:
    """The filter for a kind of processor, as ``bwrap --seccomp`` reads it; by default for this one."""
    name = machine or platform.machine()
    known = MACHINES.get("aarch64" if name == "arm64" else name)
    if known is None:
        raise SandboxError(
            f"the sandbox has no list of system calls for the processor {name!r}; it knows {' and '.join(MACHINES)}. Run what "
            "models write on one of those, or with --sandbox weak if you must."
        )
    return _assembled(_instructions(known))


Step = tuple[int, int, str, str]
"""An operation, its operand, and the labels to go to if it holds and if not; an empty one is the next step."""


def _instructions(machine: Machine) -> list[Step | str]:
    """The filter with labels, each of which stands before the step it names."""
    numbers = {name: both[machine.column] for name, both in LOOKED_INTO.items()}
    steps: list[Step | str] = [(LOAD, ARCHITECTURE, "", ""), (EQUAL, machine.audit, "", "kill"), (LOAD, NUMBER, "", "")]
    if machine.column == 0:
        steps.append((AT_LEAST, X32, "absent", ""))
    refused = [both[machine.column] for both in REFUSED.values()]
    steps += [(EQUAL, number, "refuse", "") for number in refused if number is not None]
    # Its flags lie in memory, where no filter can look; told that there is no such call, libraries fall back on clone.
    steps.append((EQUAL, numbers["clone3"], "absent", ""))
    steps += [(EQUAL, numbers[name], name, "") for name in ("clone", "socket", "socketpair", "ioctl")]
    steps += ["allow", (RETURN, ALLOW, "", "")]
    steps += ["clone", (LOAD, ARGUMENTS, "", ""), (ANY_BIT, NEW_NAMESPACES, "refuse", ""), (RETURN, ALLOW, "", "")]
    steps += ["socket", "socketpair", (LOAD, ARGUMENTS, "", "")]
    steps += [(EQUAL, family, "fine", "") for family in FAMILIES]
    steps += [(RETURN, ERRNO | errno.EAFNOSUPPORT, "", ""), "fine", (RETURN, ALLOW, "", "")]
    steps += ["ioctl", (LOAD, ARGUMENTS + 8, "", "")]
    steps += [(EQUAL, request, "refuse", "") for request in TERMINAL_INPUT]
    steps += [(RETURN, ALLOW, "", "")]
    steps += ["refuse", (RETURN, ERRNO | errno.EPERM, "", ""), "absent", (RETURN, ERRNO | errno.ENOSYS, "", "")]
    return [*steps, "kill", (RETURN, KILL, "", "")]


def _assembled(steps: list[Step | str]) -> bytes:
    places: dict[str, int] = {}
    found: list[Step] = []
    for step in steps:
        if isinstance(step, str):
            places[step] = len(found)
        else:
            found.append(step)

    def jump(label: str, here: int) -> int:
        return places[label] - here - 1 if label else 0

    return b"".join(
        struct.pack("<HBBI", code, jump(yes, here), jump(no, here), operand) for here, (code, operand, yes, no) in enumerate(found)
    )
