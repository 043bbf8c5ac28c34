"""Which knob moves during the run, on which signal?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.objective.base import Controller, State
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class TargetKL(Controller):
    """Ends a step's passes once the policy has moved this far (mean of ``(r - 1) - log r`` over the last update).

    Fields:
        limit: smaller stops earlier; 0.01 to 0.03 is usual for PPO.
    """

    ranges: ClassVar = {"limit": "(0, inf]"}

    limit: float = 0.02

    def ends_passes(self, metrics: Metrics) -> bool:
        return metrics.get("kl_proximal", 0.0) > self.limit


@dataclass(frozen=True)
class AdaptiveKL(Controller):
    r"""Moves the weight of a KL reward so that the KL stays near a target.

    .. math::  \beta \leftarrow \beta\,\big(1 + \mathrm{clip}(KL/target - 1, -0.2, 0.2)\cdot n / horizon\big)

    with n the rows of the step.

    Fields:
        target: KL to the reference to hold, per decision.
        start: first weight.
        horizon: rows over which a persistent error of 20% changes the weight by 20%. Larger is slower.
        knob: the weight it moves.
    """

    ranges: ClassVar = {"target": "(0, inf)", "start": "[0, inf)", "horizon": "[1, inf)"}

    target: float = 0.1
    start: float = 0.05
    horizon: int = 10_000
    knob: str = "reward.weight"

    def needs(self) -> frozenset[str]:
        return frozenset({"reference.start.logp"})

    def init(self) -> State:
        return {"weight": self.start}

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        return {self.knob: state["weight"]}

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        error = min(max(metrics["kl_start"] / self.target - 1, -0.2), 0.2)
        return {"weight": state["weight"] * (1 + error * batch.rows / self.horizon)}
