"""How many threads torch computes with. They change the rounding of sums, so the number is part of a run."""

from __future__ import annotations

import platform

import torch


def use_threads(count: int) -> None:
    """Computes with this many threads from here on.

    On ARM, oneDNN's matrix products wake helper threads whatever torch was told: with one thread a product of two 64 x 64
    matrices takes 0.7 ms instead of 0.05 ms (measured on a Neoverse-N1 with torch 2.13). The BLAS behind torch is as fast for
    large products and follows the setting, so oneDNN is left out there.
    """
    torch.set_num_threads(count)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
