"""Means over decisions, gathered slice by slice without waiting for the device until they are asked for."""

from __future__ import annotations

from torch import Tensor

from upslope.types import Metrics


class Tally:
    """Sums and counts by name."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor | float] = {}
        self.count: dict[str, Tensor | float] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Adds ``count`` observations that sum to ``total``."""
        self.total[name] = self.total.get(name, 0.0) + total
        self.count[name] = self.count.get(name, 0.0) + count

    def merge(self, other: Tally) -> None:
        for name, total in other.total.items():
            self.add(name, total, other.count[name])

    def means(self) -> Metrics:
        """Mean of each name; nothing observed is left out."""
        return {name: float(total) / float(self.count[name]) for name, total in self.total.items() if float(self.count[name]) > 0}
