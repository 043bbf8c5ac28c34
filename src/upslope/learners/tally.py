"""Means over decisions, gathered slice by slice. Nothing waits for the device, or is even added up, until it is asked for."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from upslope.types import Metrics


class Tally:
    """Totals and counts by name."""

    def __init__(self) -> None:
        self.totals: dict[str, list[Tensor | float]] = defaultdict(list)
        self.counts: dict[str, list[Tensor | float]] = defaultdict(list)

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Adds ``count`` observations that sum to ``total``."""
        self.totals[name].append(total)
        self.counts[name].append(count)

    def merge(self, other: Tally) -> None:
        for name, totals in other.totals.items():
            self.totals[name] += totals
            self.counts[name] += other.counts[name]

    def means(self) -> Metrics:
        """Mean of each name; nothing observed is left out."""
        counts = {name: _sum(values) for name, values in self.counts.items()}
        return {name: _sum(totals) / counts[name] for name, totals in self.totals.items() if counts[name] > 0}


def _sum(values: list[Tensor | float]) -> float:
    tensors = [value for value in values if isinstance(value, Tensor)]
    plain = sum(value for value in values if not isinstance(value, Tensor))
    return plain + (float(torch.stack([tensor.double() for tensor in tensors]).sum()) if tensors else 0.0)
