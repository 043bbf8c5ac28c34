"""What is remembered and shared: how often each task succeeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Memory, State
from upslope.objective.memory.table import empty, looked_up, merged
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class SuccessTracker(Memory):
    r"""Discounted successes and failures of each task, forgotten the faster the further the policy has moved (SPO).

    .. math::
        \hat v = \frac{a}{a+b}, \qquad \rho = \mathrm{clip}(2^{-D/half},\ low, high), \qquad
        a \leftarrow \rho a + R,\quad b \leftarrow \rho b + 1 - R

    :math:`D` is ``signal["drift"]`` of the task's rows (`LastResponse`), 0 where nobody measured it. Several answers of one task in
    a step are added together and forget once. As :math:`a + b` counts answers whatever they earned, :math:`\hat v` is the
    discounted mean of any reward, not only of one in [0, 1].

    Fields:
        half: drift, in mean absolute log-ratio of a token, at which half is forgotten. Smaller follows the policy faster and
            is noisier.
        low: the least that is kept of what was known; a memory of at least 1 / (1 - low) answers.
        high: the most that is kept, however little the policy moved. 1 and ``low`` at 1 never forget: the running mean.
        prior: successes and failures a task starts with, each. At 0.5 (Jeffreys) one answer moves it from 1/2 to 3/4 or 1/4.
        offline: a first visit with at least so many answers starts the task as if they had been drawn beforehand, with the weight
            of 1 / (1 - low) answers: :math:`a = \frac{1}{1 - low}\frac{c + 1/2}{n + 1}` for a sum of rewards c of n answers.
            0, or ``low`` at 1: never.
    """

    ranges: ClassVar = {"prior": "[0, 1]"}

    half: float = 0.06
    low: float = 0.875
    high: float = 0.96
    prior: float = 0.5
    offline: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise MethodError(f"SuccessTracker keeps between low={self.low:g} and high={self.high:g}; 0 <= low <= high <= 1.")
        if not (self.half > 0 and self.prior > 0 and self.offline >= 0):
            raise MethodError(
                f"SuccessTracker has half={self.half:g}, prior={self.prior:g} and offline={self.offline}; "
                "the first two are above 0, the last is not below."
            )

    def init(self) -> State:
        return empty("success", "failure")

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        success, failure, _ = self._known(state, tasks)
        return (success / (success + failure)).to(torch.float32)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        seen, index = torch.unique(batch.task.cpu(), return_inverse=True)

        def total(column: Tensor) -> Tensor:
            return torch.zeros(len(seen), dtype=torch.float64).index_add_(0, index, column.cpu().double())

        earned, answers = total(batch.reward), total(torch.ones_like(batch.reward))
        drift = batch.signal.get("drift")
        moved = torch.zeros_like(batch.reward) if drift is None else drift[:, 0]  # the same at every decision of a row
        kept = torch.pow(2.0, -total(moved) / answers / self.half).clamp(self.low, self.high)
        success, failure, known = self._known(state, seen)
        success, failure = kept * success + earned, kept * failure + answers - earned
        if self.offline and self.low < 1:  # a memory without end has no weight to start with
            fresh = ~known & (answers >= self.offline)
            share = (earned + 0.5) / (answers + 1)
            weight = 1 / (1 - self.low)
            success, failure = torch.where(fresh, weight * share, success), torch.where(fresh, weight * (1 - share), failure)
        return merged(state, seen, {"success": success, "failure": failure})

    def _known(self, state: State, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Successes and failures of these tasks, the prior for those never seen, and which were seen."""
        columns, known = looked_up(state, tasks, {"success": self.prior, "failure": self.prior})
        return columns["success"], columns["failure"], known
