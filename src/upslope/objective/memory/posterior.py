"""What is remembered of each task: how likely it is to be solved, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Memory, State
from upslope.objective.memory.table import empty, looked_up, merged, success, totals
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class BetaPosterior(Memory):
    r"""A Beta distribution of each task's success rate, which forgets towards its prior (MoPPS).

    .. math::
        \alpha \leftarrow \lambda\alpha + (1 - \lambda)\alpha_0 + \sum_i r_i, \qquad
        \beta \leftarrow \lambda\beta + (1 - \lambda)\beta_0 + \sum_i (1 - r_i)

    over the answers of a step, with rewards cut to [0, 1]. Only tasks that were answered change. `recall` gives both numbers.

    Fields:
        lam: what is kept from visit to visit. 1 counts all answers alike, as for a policy that stands still; less follows one that
            learns and is noisier.
        successes: what a task starts with, its alpha. Answers count from 1, so that 1 is soon outweighed.
        failures: what it starts with, its beta.
    """

    ranges: ClassVar = {"lam": "[0, 1]", "successes": "(0, inf)", "failures": "(0, inf)"}

    lam: float = 1.0
    successes: float = 1.0
    failures: float = 1.0

    def init(self) -> State:
        return empty("success", "failure")

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        """Alpha and beta of each task ``[M, 2]``."""
        known, _ = looked_up(state, tasks, self._prior())
        return torch.stack([known["success"], known["failure"]], -1)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        seen, solved, answers = totals(batch, success(batch))
        prior = self._prior()
        known, _ = looked_up(state, seen, prior)
        told = {"success": solved, "failure": answers - solved}
        return merged(state, seen, {n: self.lam * known[n] + (1 - self.lam) * prior[n] + told[n] for n in told})

    def _prior(self) -> dict[str, float]:
        return {"success": self.successes, "failure": self.failures}
