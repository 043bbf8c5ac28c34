"""What a sandboxed program may use, and what is known of it when it has ended."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from upslope.errors import UserError

MEGABYTE = 2**20
Reason = Literal["ended", "seconds", "cpu", "memory", "output"]
"""Why a program is over: it ended by itself, whatever its status, or one of the limits ended it."""
SIGXCPU_STATUS = 128 + 24
WEAK = "weak sandbox: programs that a model wrote are held by limits only; they can read and send whatever this user can."
"""What every record of a run says, and everybody who runs a program so."""


class SandboxError(UserError):
    """The sandbox cannot be had here, or one of its limits does not hold."""


@dataclass(frozen=True)
class Limits:
    """What one program may use, all its processes together unless it says otherwise.

    Fields:
        seconds: by the clock on the wall, from when the program is handed over.
        cpu: whole seconds of computing, of each process.
        memory: megabytes, of all processes together and of each by itself.
        scratch: megabytes of files in ``/tmp`` and in ``/dev/shm``, each of which is empty at the start and gone at the end.
        processes: processes and threads at a time, with the few that hold the sandbox.
        files: open files of a process.
        output: megabytes of stdout and stderr together.
    """

    seconds: float = 10.0
    cpu: int = 10
    memory: int = 256
    scratch: int = 64
    processes: int = 32
    files: int = 64
    output: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value <= 0:
                what = "a number" if field.name == "seconds" else "a whole number"
                raise SandboxError(f"the limit {field.name} is {value!r}; it must be {what} above 0.")
        if self.memory < LEAST_MEMORY:
            raise SandboxError(f"the limit memory is {self.memory} megabytes; an interpreter alone needs {LEAST_MEMORY}.")
        if self.processes < LEAST_PROCESSES:
            raise SandboxError(f"the limit processes is {self.processes}; the sandbox itself needs {LEAST_PROCESSES}.")


LEAST_MEMORY, LEAST_PROCESSES = 32, 4


@dataclass(frozen=True)
class Finished:
    """A program that is over.

    Fields:
        stdout, stderr: what it wrote; what is no UTF-8 in it is replaced.
        status: its exit status, 128 and the number of the signal where one ended it.
        reason: why it is over.
        seconds: how long it took by the clock on the wall.
    """

    stdout: str
    stderr: str
    status: int
    reason: Reason
    seconds: float

    @property
    def good(self) -> bool:
        """Whether it ended by itself, without an error."""
        return self.reason == "ended" and self.status == 0
