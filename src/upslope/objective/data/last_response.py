"""How far has the policy moved on a task since it was last asked?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Data, DataContext, State, Stateful
from upslope.types import Batch, Metrics, Trajectories, View, pack_rows, unpack_rows


@dataclass(frozen=True)
class LastResponse(Data, Stateful):
    r"""Keeps the last answer to each task and measures on it how far the policy has moved since (SPO).

    .. math::  D = \frac1T \sum_t \big|\log\pi_{then}(y_t) - \log\pi_{now}(y_t)\big|

    on the kept answer of the row's task, written to ``signal["drift"]`` of the fresh rows, the same at all positions. A task
    without a kept answer has 0. It costs a forward pass over one kept answer for each task of the step that has one.

    Fields:
        keep: answers kept, one for each task; beyond that those asked longest ago are given up.
    """

    takes_recorded_for_policys: ClassVar[bool] = True
    """What was recorded while an answer was sampled stands for what the policy said of it then."""

    keep: int = 4096

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise MethodError(f"LastResponse.keep is {self.keep}; it is a number of answers, 0 or above.")

    def init(self) -> State:
        return {"steps": []}

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        found = [kept for kept in self._kept(rows) if kept.rows]
        drift = torch.zeros_like(rows.reward)
        if found:
            kept = context.join(found) if len(found) > 1 else found[0]
            now = context.evaluate(kept, frozenset({"logp"})).logp
            moved = kept.row_mean(torch.where(kept.sampled > 0, (kept.behavior.logp - now).abs(), 0.0))
            names, order = kept.task.sort()
            place = torch.searchsorted(names, rows.task).clamp(max=len(names) - 1)
            known = (names[place] == rows.task) & rows.fresh()
            drift = torch.where(known, moved[order][place].to(drift), drift)
        return rows.replace(signal={**rows.signal, "drift": drift.unsqueeze(1).expand(rows.sampled.shape).clone()})

    def _kept(self, rows: Trajectories) -> list[Trajectories]:
        """The kept answers to this step's tasks, step by step."""
        tasks = torch.unique(rows.task).cpu()
        found = []
        for packed in rows.state[self]["steps"]:
            wanted = torch.isin(packed["task"].cpu(), tasks)
            if bool(wanted.any()):
                found.append(unpack_rows(packed, rows).take_rows(wanted.to(rows.sampled.device)))
        return found

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        assert isinstance(batch, Trajectories)
        fresh = batch.take_rows(batch.fresh() & (batch.lengths() > 0)) if batch.rows else batch
        if not fresh.rows:
            return state
        last = _last_of_each(fresh.task)
        newest = pack_rows(_plain(fresh.take_rows(last)).to("cpu"))
        steps = [_only(packed, ~torch.isin(packed["task"], newest["task"]), batch) for packed in state["steps"]] + [newest]
        return {"steps": self._capped(steps, batch)}

    def _capped(self, steps: list[State], like: Trajectories) -> list[State]:
        """The newest `keep` answers; steps of which none is left are gone."""
        left, kept = self.keep, []
        for packed in reversed(steps):
            rows = len(packed["task"])
            if rows and left:
                kept.append(packed if rows <= left else _only(packed, torch.arange(rows) >= rows - left, like))
                left -= min(rows, left)
        return kept[::-1]


def _last_of_each(tasks: Tensor) -> Tensor:
    """The last row of each task, rows in their order."""
    _, index = torch.unique(tasks, return_inverse=True)
    place = torch.arange(len(tasks), device=tasks.device)
    last = torch.zeros(int(index.max()) + 1, dtype=torch.int64, device=tasks.device).scatter_reduce_(0, index, place, "amax")
    return last.sort().values


def _plain(rows: Trajectories) -> Trajectories:
    """Rows with no more than is needed to look at them again."""
    return Trajectories(
        sampled=rows.sampled,
        reward=rows.reward,
        group=rows.group,
        task=rows.task,
        behavior=View(rows.behavior.logp),
        action=rows.action,
        temperature=rows.temperature,
        horizon=rows.horizon,
        inputs=rows.inputs,
    )


def _only(packed: State, keep: Tensor, like: Trajectories) -> State:
    """These of the packed rows; untouched where that is all of them."""
    if bool(keep.all()):
        return packed
    on_cpu = like.replace(sampled=like.sampled[:0].cpu())
    return pack_rows(unpack_rows(packed, on_cpu).take_rows(keep))
