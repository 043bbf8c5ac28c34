"""The last step's rows, once more, judged by what came of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from upslope.errors import MethodError
from upslope.objective.base import Data, DataContext, State, Stateful
from upslope.types import Batch, Metrics, Trajectories, pack_rows, unpack_rows

SMALLEST_SPREAD = 1e-8
"""Below it the means of the window count as equal and are not divided by."""


@dataclass(frozen=True)
class PreviousStep(Data, Stateful):
    r"""Puts the rows of the last step aside as ``previous``, with how far the reward has come since (PIPO).

    .. math::  \xi_t = \frac{\mu_t - \bar\mu}{s}, \qquad  \phi(\xi) = \xi \text{ if } \xi \ge 0 \text{ else } lam\,\xi

    with :math:`\mu_t` the mean task reward of the fresh rows, :math:`\bar\mu` and s mean and population spread of the last
    ``window`` such means (a spread below 1e-8 counts as 1). The rows carry ``signal["progress"]`` and
    ``signal["progress_scale"]``, whose product is :math:`\phi`. They stay away until the window is full, and where
    :math:`\phi` is 0.

    Fields:
        window: K, steps looked back on. Longer judges more calmly, and later.
        lam: how much of a fall in reward is turned back. 0 never turns back (the released default).
        dead_zone: progress up to this size counts as none.
        limit: largest difference of means that counts, before the division (released: 5).
        gate: largest progress after it (released for value functions: 2).
        counts_current: the current mean enters the window before it is compared with it, as in the released code: the window is
            full a step earlier, and progress cannot exceed :math:`\sqrt{K-1}`.
        scale_late: lam multiplies the loss after the coefficients are bounded, as in the released code.
    """

    window: int = 8
    lam: float = 0.1
    dead_zone: float = 0.0
    limit: float = math.inf
    gate: float = math.inf
    counts_current: bool = False
    scale_late: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise MethodError(f"PreviousStep.window is {self.window}; it is a number of steps, at least 1.")
        for name in ("lam", "dead_zone", "limit", "gate"):
            if not getattr(self, name) >= 0:
                raise MethodError(f"PreviousStep.{name} is {getattr(self, name)}; it must be at least 0.")

    def init(self) -> State:
        return {"means": [], "rows": {}}

    def progress(self, means: Sequence[float], mean: float) -> float:
        """How many spreads of the window this mean is above it; 0 while the window is not full."""
        known = ([*means, mean] if self.counts_current else list(means))[-self.window :]
        if len(known) < self.window:
            return 0.0
        centre = sum(known) / len(known)
        spread = math.sqrt(sum((each - centre) ** 2 for each in known) / len(known))
        step = min(max(mean - centre, -self.limit), self.limit)
        found = min(max(step / (spread if spread >= SMALLEST_SPREAD else 1.0), -self.gate), self.gate)
        return 0.0 if abs(found) <= self.dead_zone else found

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        state = rows.state[self]
        progress = self.progress(state["means"], _mean(rows))
        scale = self.lam if progress < 0 else 1.0
        if not state["rows"] or progress * scale == 0:
            return rows
        previous = unpack_rows(state["rows"], rows)
        told = (progress, scale) if self.scale_late else (progress * scale, 1.0)
        columns = [torch.full_like(previous.reward, value) for value in told]
        previous = previous.replace(signal=dict(zip(("progress", "progress_scale"), columns, strict=True)))
        return rows.replace(aside={**rows.aside, "previous": previous})

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        means = [*state["means"], metrics.get("reward", float(batch.reward.mean()))][-self.window :]
        assert isinstance(batch, Trajectories)
        learned = batch.take_rows(batch.fresh()).replace(proximal=None, reference={}, signal={})
        return {"means": means, "rows": pack_rows(learned) if learned.rows and learned.advantage is not None else {}}


def _mean(rows: Trajectories) -> float:
    """Mean task reward of the fresh rows: what the metrics of the step call ``reward``."""
    return float(rows.components.get("task", rows.reward)[rows.fresh()].mean())
