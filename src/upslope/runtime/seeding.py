"""Randomness by counter: every draw is a function of the run's seed and of *what* is drawn, never of what was drawn before.

A resumed run, a run that dropped a row or one that sampled in another order therefore sees the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from upslope.runtime.hashing import stable_hash as stable_hash

Counter = int | str


def mix(seed: int, *counters: Counter) -> int:
    """A 63-bit seed for this use: ``mix(seed, "tasks", step)``."""
    return stable_hash("/".join(str(part) for part in (seed, *counters)))


def generator(seed: int, *counters: Counter) -> torch.Generator:
    """A CPU generator for this use."""
    return torch.Generator().manual_seed(mix(seed, *counters))


def numpy_generator(seed: int, *counters: Counter) -> np.random.Generator:
    return np.random.default_rng(mix(seed, *counters))


def uniforms(shape: tuple[int, ...], seed: int, *counters: Counter) -> Tensor:
    """Uniform numbers in [0, 1), drawn on the CPU so that every device sees the same."""
    return torch.rand(shape, generator=generator(seed, *counters))
