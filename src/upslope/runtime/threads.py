"""How many threads torch computes with. They change the rounding of sums, so the number is part of a run.

The numbers belong to the whole process, which may be somebody else's: a run sets them as long as it lasts.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from upslope.runtime.environment import keep_freed_memory


def use_threads(count: int) -> None:
    """Computes with this many threads from here on, for whoever owns the process; `torch_threads` is for all others.

    On ARM, oneDNN's matrix products wake helper threads whatever torch was told: with one thread a product of two 64 x 64
    matrices takes 0.7 ms instead of 0.05 ms (measured on a Neoverse-N1 with torch 2.13). The BLAS behind torch is as fast for
    large products and follows the setting, so oneDNN is left out there.

    The C library keeps freed memory from then on (`keep_freed_memory`): that cannot be taken back, and changes no number.
    """
    keep_freed_memory()
    torch.set_num_threads(count)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


@contextmanager
def restored_threads() -> Iterator[None]:
    """Afterwards threads and oneDNN are as they were before, whatever was set in between."""
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Computes with this many threads as long as the block lasts."""
    with restored_threads():
        use_threads(count)
        yield
