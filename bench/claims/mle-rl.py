"""mle-rl's claim: where slow actions are cut off, weighing gradients by duration undoes the bias towards fast ones."""

from __future__ import annotations

import dataclasses
import heapq
import time

import numpy as np
import torch
from harness import Cell, Claim, Result, Statement, Variant, main

REWARD, SECONDS = np.array([0.6, 1.0]), np.array([1.0, 5.0])
"""Of the fast arm and the slow one."""
ABORTED, BASELINE = "windows, the rest cut off", "the same with a running baseline"
FREE, FINISHERS = "free-running", "the first two to finish"
SLOW = "P(slow arm)"
Samples = tuple[list[int], list[float]]


def drawn(rng: np.random.Generator, slow: float, count: int) -> np.ndarray:
    return (rng.random(count) < slow).astype(int)


@dataclasses.dataclass
class Actors:
    """Actors side by side on a simulated clock; which of their actions a learner sees depends on ``scheduling``.

    Fields:
        scheduling: ``aborted``: for ``window`` seconds each actor acts again and again, and what is not done then is cut off;
            ``free``: nobody is ever cut off, an action belongs to the window it ends in; ``finishers``: all begin together, and
            the first ``first`` to finish are taken.
    """

    scheduling: str
    count: int = 8
    window: float = 5.0
    first: int = 2

    def __post_init__(self) -> None:
        self.pending: list[tuple[float, int, int]] = []
        self.now = 0.0

    def collected(self, slow: float, rng: np.random.Generator) -> list[int]:
        """The arms whose actions ended in the next window."""
        if self.scheduling == "finishers":
            arms = drawn(rng, slow, self.count)
            took = SECONDS[arms] + 1e-9 * rng.random(self.count)  # who is first among equals is luck
            return arms[np.argsort(took)[: self.first]].tolist()
        if self.scheduling == "free":
            return self._free(slow, rng)
        seen: list[int] = []
        for _ in range(self.count):
            left = self.window
            while True:
                arm = int(drawn(rng, slow, 1)[0])
                left -= SECONDS[arm]
                if left < 0:
                    break
                seen.append(arm)
        return seen

    def _free(self, slow: float, rng: np.random.Generator) -> list[int]:
        if not self.pending:
            for actor, arm in enumerate(drawn(rng, slow, self.count).tolist()):
                heapq.heappush(self.pending, (SECONDS[arm], actor, arm))
        self.now, seen = self.now + self.window, []
        while self.pending[0][0] <= self.now:
            ended, actor, arm = heapq.heappop(self.pending)
            seen.append(arm)
            following = int(drawn(rng, slow, 1)[0])
            heapq.heappush(self.pending, (ended + SECONDS[following], actor, following))
        return seen


def weights(arms: list[int], weighted: bool) -> np.ndarray:
    """What each action counts, by the library's own part."""
    from upslope.objective.weight.by_duration import ByDuration
    from upslope.types import Batch, View

    if not weighted or not arms:
        return np.ones(len(arms))
    took = torch.tensor(SECONDS[arms], dtype=torch.float64).unsqueeze(1)
    one, nobody = torch.ones_like(took), torch.zeros(len(arms), dtype=torch.int64)
    batch = Batch(one, nobody.double(), nobody, nobody, View(torch.zeros_like(one)), seconds=took)
    return ByDuration()(batch).squeeze(1).numpy()


@dataclasses.dataclass(frozen=True)
class BanditBed:
    """Two arms, eight actors and a policy of one number: plain REINFORCE on returns, a sum over what a window brought.

    Fields:
        scheduling: see `Actors`.
        baseline: of the running mean of returns, how much of it a new window leaves; 0 has none.
    """

    scheduling: str = "aborted"
    baseline: float = 0.0

    def train(self, cell: Cell) -> Result:
        began, rng = time.perf_counter(), np.random.default_rng([cell.seed, 20250901])
        actors, logit, mean = Actors(self.scheduling), 0.0, None
        metrics = []
        for step in range(1, cell.settings["steps"] + 1):
            slow = 1 / (1 + np.exp(-logit))
            arms = actors.collected(slow, rng)
            if arms:
                earned = REWARD[arms]
                advantage = earned - (mean or 0.0) if self.baseline else earned
                if self.baseline:
                    mean = earned.mean() if mean is None else self.baseline * mean + (1 - self.baseline) * earned.mean()
                score = np.array(arms) - slow  # of log P(arm) in the logit
                logit += cell.settings["lr"] * float((weights(arms, cell.settings["weighted"]) * advantage * score).mean())
            metrics.append({"step": step, "slow": 1 / (1 + np.exp(-logit)), "seen": float(np.mean(arms)) if arms else np.nan})
        slow = metrics[-1]["slow"]
        return Result(cell, 0.5, slow, time.perf_counter() - began, metrics, {"slow": slow, "above": float(slow > 0.5)})


def slow_arm(result: Result) -> float:
    return result.extra["slow"]


def above_half(result: Result) -> float:
    return result.extra["above"]
