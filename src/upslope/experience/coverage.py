"""How many different pairs of state and action there are: exactly, or by HyperLogLog where there are many."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from upslope.experience.episodes import Episodes

BINS = 100
"""Of a continuous number, between its lowest and its highest value in the data."""
EXACT_UP_TO = 1_000_000
"""Pairs up to which each is remembered; above it they are estimated."""
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class UniquePairs:
    """Different (state, action) pairs."""

    count: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Limits:
    """Lowest and highest value of every number of an observation and of an action: between them lie the bins."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, *datasets: Episodes) -> Limits:
        """Of all of them: only then are their bins the same."""
        columns = [_numbers(episodes, episodes.decisions) for episodes in datasets]
        low = np.min([column.min(0) for column in columns], axis=0)
        return cls(low, np.max([column.max(0) for column in columns], axis=0))

    def bins(self, numbers: np.ndarray) -> np.ndarray:
        """Which bin each number ``[N, D]`` falls into, uint8."""
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        # The highest value belongs to the last bin, and what another dataset has beyond it too.
        return np.clip((numbers - self.low) / span * BINS, 0, BINS - 1).astype(np.uint8)


def unique_pairs(episodes: Episodes, limits: Limits | None = None, exact_up_to: int = EXACT_UP_TO) -> UniquePairs:
    """Counts the different pairs; continuous numbers count as the same where they fall into the same bin.

    Args:
        limits: Of the bins; left out, of these data. To compare two datasets both need the same.
    """
    rows = episodes.decisions
    limits = limits or Limits.of(episodes)
    parts = (_codes(episodes, rows[begin : begin + ROWS_AT_ONCE], limits) for begin in range(0, len(rows), ROWS_AT_ONCE))
    if len(rows) > exact_up_to:
        sketch = HyperLogLog()
        for codes in parts:
            sketch.add(hashes(codes))
        return UniquePairs(sketch.estimate(), False)
    found: set[bytes] = set()
    for codes in parts:
        # Sixteen bytes stand for a row: two that differ agree in them once in 10^26 datasets of this size.
        found.update(hashlib.blake2b(row, digest_size=16).digest() for row in codes)
    return UniquePairs(len(found), True)


def _codes(episodes: Episodes, rows: np.ndarray, limits: Limits) -> np.ndarray:
    """Rows ``[N, D]`` of bytes that are equal where the pairs are."""
    parts = [limits.bins(_numbers(episodes, rows))]
    parts.append(episodes.pixels(rows))
    if episodes.discrete:
        parts.append(episodes.action[rows, None].view(np.uint8))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _numbers(episodes: Episodes, rows: np.ndarray) -> np.ndarray:
    """What is continuous, ``[N, D]``; images and choices are as they are."""
    return np.concatenate([episodes.numbers(rows), *([] if episodes.discrete else [episodes.action[rows]])], axis=1)


# -- counting without remembering -------------------------------------------------------------------------------------------------

PRECISION = 15
"""Registers are 2 to this: an error of 1.04 / sqrt(2^15) = 0.6%, in 32 kB."""


class HyperLogLog:
    """Flajolet et al. 2007: the longest run of zeros among many hashes tells how many different ones there were."""

    def __init__(self) -> None:
        self.registers = np.zeros(1 << PRECISION, np.uint8)

    def add(self, hashed: np.ndarray) -> None:
        """Takes hashes ``[N]`` uint64."""
        place = (hashed >> np.uint64(64 - PRECISION)).astype(np.int64)
        rest = (hashed << np.uint64(PRECISION)) | np.uint64(1 << (PRECISION - 1))  # a bit that ends every run of zeros
        rank = 64 - np.floor(np.log2(rest.astype(np.float64))).astype(np.uint8)
        np.maximum.at(self.registers, place, rank)

    def estimate(self) -> float:
        """How many different hashes there were, by Ertl's estimator (1702.01284, algorithm 6): no bias for few or many."""
        size, longest = len(self.registers), 64 - PRECISION
        held = np.bincount(self.registers, minlength=longest + 2).tolist()
        total = size * _tau(1 - held[longest + 1] / size)
        for count in reversed(held[1 : longest + 1]):
            total = 0.5 * (total + count)
        total += size * _sigma(held[0] / size)
        return size * size / (2 * math.log(2) * total)


def _sigma(share: float) -> float:
    """``x + sum of 2^(k-1) x^(2^k)``: what registers that are still empty stand for."""
    if share == 1:
        return math.inf
    factor, total, before = 1.0, share, -1.0
    while total != before:
        share, before = share * share, total
        total, factor = total + share * factor, 2 * factor
    return total


def _tau(share: float) -> float:
    """``(1 - x - sum of 2^-k (1 - x^(2^-k))^2) / 3``: what registers that cannot grow stand for."""
    if share in (0, 1):
        return 0.0
    factor, total, before = 1.0, 1 - share, -1.0
    while total != before:
        share, before, factor = math.sqrt(share), total, 0.5 * factor
        total -= (1 - share) ** 2 * factor
    return total / 3


def hashes(codes: np.ndarray) -> np.ndarray:
    """A 64-bit hash ``[N]`` of every row of bytes (splitmix64, eight bytes at a time)."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    found = np.zeros(len(codes), np.uint64)
    with np.errstate(over="ignore"):
        for word in padded.view(np.uint64).T:
            found = (found ^ word) + np.uint64(0x9E3779B97F4A7C15)
            found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found ^= found >> np.uint64(31)
    return found
