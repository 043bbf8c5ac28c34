"""How much memory a run takes."""

from __future__ import annotations

import resource
import sys


def peak_memory() -> float:
    """The most this process has held so far, in MiB: on the GPU if it uses one, else in memory."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / 2**20 if sys.platform == "darwin" else held / 2**10  # macOS counts bytes, Linux kilobytes
