"""A threshold that follows how the reward moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from upslope.errors import MethodError
from upslope.objective.base import Controller, State
from upslope.types import Batch, Metrics

Phase = Literal["warm-up", "climbing", "converged", "plateau"]
FACTOR: dict[Phase, float] = {"warm-up": 1.5, "climbing": 1.2, "converged": 1.0, "plateau": 0.8}


@dataclass(frozen=True)
class PhasedThreshold(Controller):
    r"""Moves the threshold of `HingeKL` by a PID loop on the reward's velocity and by the phase of the run (SAFE).

    .. math::  threshold = \mathrm{clip}\big((base + k_p e + k_i \sum e + k_d\,\Delta e) \cdot m(phase),\ low,\ high\big)

    The error e is how much the moving average of the reward (memory 0.95) rose in the step, less ``velocity``; its sum stays within
    ±1. The phase is warm-up (m = 1.5) for the first ``window`` steps; then climbing (1.2) if the mean reward of the last window is
    0.01 above that of the one before; converged (1.0) if it is above 0.7 with a spread below 0.02; else plateau (0.8). Also hands
    the smoothed divergence on, which `HingeKL` reads where it is detached.

    Fields:
        base: the threshold of a run that neither speeds up nor slows down.
        low, high: the threshold stays between these.
        proportional, integral, derivative: gains. Larger gives a rising reward more room, and takes more away when it falls.
        velocity: rise of the reward per step that is aimed at.
        window: steps over which phases are told apart.
        hinge: path of the `HingeKL` that it moves.
    """

    base: float = 0.3
    low: float = 0.1
    high: float = 0.6
    proportional: float = 0.3
    integral: float = 0.01
    derivative: float = 0.05
    velocity: float = 0.001
    window: int = 50
    hinge: str = "regularize.1"

    def __post_init__(self) -> None:
        if self.window < 1 or not self.low <= self.high:
            raise MethodError(f"PhasedThreshold has window={self.window}, low={self.low:g}, high={self.high:g}; the window is "
                              "at least 1 step and low is not above high.")  # fmt: skip

    def needs(self) -> frozenset[str]:
        return frozenset({"reference.start.logp"})

    def init(self) -> State:
        return {"rewards": [], "average": 0.0, "sum": 0.0, "error": 0.0, "adjustment": 0.0, "divergence": 0.0}

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        return {f"{self.hinge}.threshold": self.threshold(state), f"{self.hinge}.previous": state["divergence"]}

    def threshold(self, state: State) -> float:
        wanted = (self.base + state["adjustment"]) * FACTOR[self.phase(state)]
        return min(max(wanted, self.low), self.high)

    def phase(self, state: State) -> Phase:
        rewards = state["rewards"]
        if len(rewards) < self.window:
            return "warm-up"
        recent = rewards[-self.window :]
        before = rewards[-2 * self.window : -self.window] if len(rewards) >= 2 * self.window else recent
        mean = sum(recent) / len(recent)
        if mean > sum(before) / len(before) + 0.01:
            return "climbing"
        spread = (sum((reward - mean) ** 2 for reward in recent) / len(recent)) ** 0.5
        return "converged" if spread < 0.02 and mean > 0.7 else "plateau"

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        reward, divergence = metrics["reward"], metrics.get("kl_start", 0.0)
        rewards = [*state["rewards"], reward][-2 * self.window :]
        smoothed = 0.9 * state["divergence"] + 0.1 * divergence
        if not state["rewards"]:
            return {**state, "rewards": rewards, "average": reward, "divergence": smoothed}
        average = 0.95 * state["average"] + 0.05 * reward
        error = average - state["average"] - self.velocity
        total = min(max(state["sum"] + error, -1.0), 1.0)
        change = error - state["error"]
        return {
            "rewards": rewards,
            "average": average,
            "sum": total,
            "error": error,
            "adjustment": self.proportional * error + self.integral * total + self.derivative * change,
            "divergence": smoothed,
        }
