"""How much memory a run takes, and what is free."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from upslope.errors import UserError

CURES = "Less is taken with a smaller --max-tokens, --samples-per-task or --tasks-per-step, with --lora or --recompute all"
_CGROUP = Path("/sys/fs/cgroup")
_ALLOCATOR = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")
"""How torch's allocators say it where they raise a plain RuntimeError."""


def peak_memory() -> float:
    """The most this process has held so far, in MiB: on the GPU if it uses one, else in memory."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / 2**20 if sys.platform == "darwin" else held / 2**10  # macOS counts bytes, Linux kilobytes


def free_bytes() -> int:
    """Memory that can be had without swapping, within the limit of a container if there is one."""
    return min(_machine_free(), _container_free())


def _machine_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 1 << 62


def _container_free() -> int:
    """What the limit of the control group (version 2, as containers see it) leaves; file pages in it can be given back."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())  # "max" is no number
        used = int((_CGROUP / "memory.current").read_text())
        pages = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(pages.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 1 << 62


def explain_out_of_memory(error: BaseException) -> UserError | None:
    """A failed allocation in words a user can act on; None if the error is something else."""
    import torch

    said = str(error).lower()
    on_gpu = isinstance(error, torch.OutOfMemoryError) or ("cuda" in said and "out of memory" in said)
    plain = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(words in said for words in _ALLOCATOR))
    if not on_gpu and not plain:
        return None
    where = "the GPU's memory" if on_gpu else "memory"
    asked = " ".join(str(error).split("\n")[0].split())[:200]
    return UserError(f"{where} did not suffice{f' ({asked})' if asked else ''}. {CURES}.")
