"""Randomness by counter: every draw is a function of the run's seed and of *what* is drawn, never of what was drawn before.

A resumed run, a run that dropped a row or one that sampled in another order therefore sees the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

Counter = int | str


def mix(seed: int, *counters: Counter) -> int:
    """A 63-bit seed for this use: ``mix(seed, "tasks", step)``."""
    text = "/".join(str(part) for part in (seed, *counters))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stable_hash(text: str) -> int:
    """A 63-bit hash that is the same in every process and on every machine (Python's own is not)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *counters: Counter) -> torch.Generator:
    """A CPU generator for this use."""
    return torch.Generator().manual_seed(mix(seed, *counters))


def numpy_generator(seed: int, *counters: Counter) -> np.random.Generator:
    return np.random.default_rng(mix(seed, *counters))


def uniforms(shape: tuple[int, ...], seed: int, *counters: Counter) -> Tensor:
    """Uniform numbers in [0, 1), drawn on the CPU so that every device sees the same."""
    return torch.rand(shape, generator=generator(seed, *counters))
