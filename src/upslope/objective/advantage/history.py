"""Rewards standardised against everything a task ever earned (DCPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from upslope.objective.base import Advantage, State, Stateful
from upslope.types import Batch, Metrics


class Earned(NamedTuple):
    """What a task earned: how often it was visited, mean and spread of its rewards."""

    visits: Tensor
    mean: Tensor
    std: Tensor

    def and_then(self, mean: Tensor, std: Tensor) -> Earned:
        """With one more visit; visits weigh the same. A reward that never changed keeps a spread of exactly zero."""
        n = self.visits
        variance = (n * self.std**2 + std**2 + n / (n + 1) * (mean - self.mean) ** 2) / (n + 1)
        first = n == 0
        mean = torch.where(first, mean, self.mean + (mean - self.mean) / (n + 1))
        return Earned(n + 1, mean, torch.where(first, std, variance.sqrt()))


@dataclass(frozen=True)
class SmoothBaseline(Advantage, Stateful):
    r"""The smaller of two mixes of the group's own standardised reward and that against the task's whole history (DCPO).

    .. math::
        A_{new} = \frac{R - \mu_{new}}{\sigma_{new}},\quad A_{total} = \frac{R - \mu_{total}}{\sigma_{total}},\qquad
        A = \text{the smaller in size of}\quad \tfrac{i-1}{i} A_{new} + \tfrac1i A_{total}\quad\text{and}\quad
        \tfrac1i A_{new} + \tfrac{i-1}{i} A_{total}

    at the i-th visit of the task, where "total" is over all i visits, this one included. A spread of zero gives zero, so the first
    visit is GRPO; later a group of equal rewards gets :math:`A_{total}/i` and still teaches, if the task ever earned otherwise.
    Several groups of one task in a step see the same history and enter it as one visit.

    Fields:
        ddof: 1 is the unbiased spread of a group that libraries use, 0 the population's, for which the spread over all visits
            is exactly that of all rewards when groups are equally large.
        eps: added to both divisors; the paper has none.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    ddof: int = 1
    eps: float = 0.0

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def init(self) -> State:
        empty = torch.zeros(0, dtype=torch.float64)
        return {"task": torch.zeros(0, dtype=torch.int64), "visits": empty, "mean": empty.clone(), "std": empty.clone()}

    def __call__(self, batch: Batch) -> Tensor:
        mean, std = self._standing(batch)
        total = _remembered(batch.state[self], batch.task, mean).and_then(mean, std)
        new, old = (self._standardised(batch.reward, *moments) for moments in ((mean, std), (total.mean, total.std)))
        late = 1 / total.visits
        now, ever = (1 - late) * new + late * old, late * new + (1 - late) * old
        return batch.per_decision(torch.where(now.abs() < ever.abs(), now, ever))

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        mean, std = self._standing(batch.replace(group=batch.task))
        fresh = _remembered(state, batch.task, mean).and_then(mean, std)
        tasks = torch.unique(torch.cat([state["task"], batch.task.cpu()]))
        found: State = {"task": tasks}
        for name, column in fresh._asdict().items():
            found[name] = torch.zeros(len(tasks), dtype=torch.float64)
            found[name][torch.searchsorted(tasks, state["task"])] = state[name]
            found[name][torch.searchsorted(tasks, batch.task.cpu())] = column.double().cpu()  # rows of a task agree
        return found

    def _standing(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean and spread of each row's group; of equal rewards the reward itself and zero, to the last bit."""
        stats = batch.group_stats(batch.reward, self.ddof)
        return torch.where(stats.constant, batch.reward, stats.mean), stats.std.masked_fill(stats.constant, 0.0)

    def _standardised(self, reward: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return torch.where(std > 0, (reward - mean) / torch.where(std > 0, std + self.eps, 1.0), 0.0)


def _remembered(state: State, task: Tensor, like: Tensor) -> Earned:
    """What is remembered of each row's task; a task never seen has no visits."""
    known = state["task"].to(task.device)
    if not len(known):
        return Earned(*(torch.zeros_like(like) for _ in Earned._fields))
    place = torch.searchsorted(known, task).clamp(max=len(known) - 1)
    seen = known[place] == task
    return Earned(*(torch.where(seen, state[name].to(like)[place], 0.0) for name in Earned._fields))
