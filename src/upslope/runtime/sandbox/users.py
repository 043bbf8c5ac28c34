"""A user number for each slot, so that limits which the kernel counts by user are a program's own.

A number is held by the name of a socket, which the kernel forgets with the process that holds it: nothing is left in any folder,
and two processes never hold the same one.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path
from types import TracebackType

from upslope.runtime.sandbox.limits import SandboxError

RANGES = ((1_900_000_000, 1_900_004_096), (60_800, 61_184))
"""Numbers that neither distributions nor systemd give to anybody; the second for containers, which often have 65,536 in all."""
ID_MAP = Path("/proc/self/uid_map")


def user_range(id_map: Path = ID_MAP) -> range | None:
    """The numbers this process may become; nothing if it may become nobody else."""
    if os.geteuid() != 0:
        return None
    try:
        rows = [tuple(map(int, line.split())) for line in id_map.read_text().splitlines()]
    except (OSError, ValueError):
        return None
    for first, end in RANGES:
        if any(start <= first and end <= start + count for start, _, count in rows):
            return range(first, end)
    return None


class HeldUser:
    """One user number that no other slot on this machine has while it is held."""

    def __init__(self, numbers: range):
        for number in numbers:
            held = socket.socket(socket.AF_UNIX)
            try:
                held.bind(f"\0upslope-sandbox-user-{number}")
            except OSError:
                held.close()
                continue
            self.number, self._socket = number, held
            return
        raise SandboxError(f"all {len(numbers)} user numbers of the sandbox are in use. End other runs that run programs.")

    def close(self) -> None:
        """Gives it back."""
        self._socket.close()

    def __enter__(self) -> HeldUser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def is_held(number: int) -> bool:
    """Whether some slot on this machine has a user number."""
    with closing(socket.socket(socket.AF_UNIX)) as attempt:
        try:
            attempt.bind(f"\0upslope-sandbox-user-{number}")
        except OSError:
            return True
    return False
