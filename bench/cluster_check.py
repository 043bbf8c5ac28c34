"""The code that hands out assignments, with workers and a learner that sleep, beside what ``cluster_plan.py`` says of it.

Whatever computes nothing is not slowed down by others: what is compared is who waits for whom, which is all that is simulated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from upslope.plain_data import JsonDict
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.sampling_crew import SamplingCrew, WorkerPlan
from upslope.rollout.under_way import UnderWay, packed
from upslope.runtime.shared_weights import SharedWeights, WeightsInMemory
from upslope.types import Assignment, Trajectories, View

CASES = ((1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2))
"""Workers, and steps ahead."""
STEPS, SHARES, SAMPLING, LEARNING, SPREAD = 12, 4, 0.15, 0.4, 0.5


class Sleeper:
    """A worker that sleeps as long as it is told an assignment takes."""

    pid = 0
    version: int | None = None

    def __init__(self, seconds: Sequence[Sequence[float]]):
        self.seconds, self.checksum = seconds, 0

    def wait_until_ready(self, seconds: float) -> None:
        """It is."""

    def fulfil(self, assignment: Assignment, weights: WeightsInMemory | None, silent_seconds: float) -> JsonDict:
        self.checksum = weights.checksum if weights is not None else self.checksum
        time.sleep(self.seconds[assignment.step - 1][assignment.share])
        one, nobody = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
        rows = Trajectories(one, one[:, 0], nobody, nobody, View(one), inputs=TextInputs(torch.ones(1, 1, dtype=torch.int64), one))
        return {"rows": packed(rows), "told": {}, "version": assignment.version, "checksum": self.checksum}

    def leave(self) -> None:
        """There is nobody to tell."""

    def end(self) -> None:
        """Nor to kill."""


class Sleepers(SamplingCrew[Sleeper, WeightsInMemory]):
    def __init__(self, plan: WorkerPlan, seconds: Sequence[Sequence[float]]):
        self.seconds = seconds
        super().__init__(plan, SharedWeights())

    def launch(self, number: int) -> Sleeper:
        return Sleeper(self.seconds)


class Policy:
    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(1)}


def slept(seconds: Sequence[Sequence[float]], learning: float, workers: int, ahead: int) -> float:
    """Seconds that the steps take, assigned and taken as a learner does it."""
    with tempfile.TemporaryDirectory() as folder:
        crew = Sleepers(WorkerPlan(Path(folder), workers), seconds)
        under_way = UnderWay(crew)
        under_way.shares = len(seconds[0])
        began, assigned = time.perf_counter(), 0
        try:
            for step in range(1, len(seconds) + 1):
                while assigned < min(step + ahead, len(seconds)):
                    assigned += 1
                    whole = Assignment(
                        assigned, version=step - 1, numbers=tuple(range(under_way.shares)), samples=(1,) * under_way.shares
                    )
                    under_way.assign(whole, Policy())
                under_way.take(step, 0)
                time.sleep(learning)
            return time.perf_counter() - began
        finally:
            crew.close()


def compared(simulate: Callable[..., Any]) -> list[dict[str, float]]:
    """Each case as it was and as it is simulated, in seconds."""
    draw = np.random.default_rng(0)
    seconds = (SAMPLING * np.exp(draw.normal(0.0, SPREAD, (STEPS, SHARES)))).tolist()
    found = []
    for workers, ahead in CASES:
        expected = simulate(seconds, [LEARNING] * STEPS, workers, ahead).seconds
        measured = slept(seconds, LEARNING, workers, ahead)
        found.append({"workers": workers, "ahead": ahead, "measured": measured, "simulated": expected})
    return found
