"""Groups of the last steps, mixed into this one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Data, DataContext, State, Stateful
from upslope.types import Batch, Metrics, Source, Trajectories, decision_keys, pack_rows, unpack_rows

OLDER = 1_000_000_000
"""Added to group numbers once for each step of age, so that no two steps share one."""


@dataclass(frozen=True)
class Replay(Data, Stateful):
    r"""A share of the batch comes from the last steps (ReMix): whole groups, from step :math:`k-i` with i uniform in 1..window.

    To F fresh groups :math:`F\,p/(1-p)` older ones are joined, each at most once; they are the share p of the whole. Their label
    ``source`` says so, their ``behavior`` is still who sampled them. Being whole, a group has the same advantages as in its own
    step. Rows that a filter dropped are not kept.

    Fields:
        fraction: p. More learns more from each rollout and drifts further from the policy's own samples; 0 is none.
        window: steps kept. Older rows differ more from the policy.
    """

    fraction: float = 0.4
    window: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise MethodError(f"Replay.fraction is {self.fraction}; it is a share of the batch, at least 0 and below 1.")
        if self.window < 1:
            raise MethodError(f"Replay.window is {self.window}; it is a number of steps, at least 1.")

    def init(self) -> State:
        return {"steps": []}

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        kept = rows.state[self]["steps"]
        wanted = round(rows.group_index()[1] * self.fraction / (1 - self.fraction))
        if not kept or not wanted:
            return rows
        older = [self._marked(_rows_of(step, rows), age) for age, step in enumerate(kept, start=1)]
        chosen = self._drawn(rows, [batch.group.unique() for batch in older], wanted)
        older = [_only_groups(batch, chosen) for batch in older]
        fresh = rows.replace(label={**rows.label, "source": torch.full_like(rows.group, int(Source.FRESH))})
        return context.join([fresh, *(batch for batch in older if batch.rows)])

    def _marked(self, batch: Trajectories, age: int) -> Trajectories:
        label = {**batch.label, "source": torch.full_like(batch.group, int(Source.REPLAYED))}
        return batch.replace(group=batch.group + age * OLDER, label=label)

    def _drawn(self, rows: Trajectories, groups: list[Tensor], wanted: int) -> Tensor:
        """Names of ``wanted`` groups, drawn without replacement, every step as likely as any other (an exponential race)."""
        names = torch.cat(groups)
        chance = torch.cat([torch.full((len(some),), 1 / len(some), dtype=torch.float64, device=some.device) for some in groups])
        if rows.key is None:
            raise MethodError("Replay draws groups, and these rows have no keys to draw from.")
        number = rows.replace(key=decision_keys(rows.key[:1, 0], len(names))).uniform(self).squeeze(0)
        arrival = -torch.log1p(-number) / chance
        return names[arrival.argsort(stable=True)[:wanted]]

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        assert isinstance(batch, Trajectories)
        fresh = batch.fresh()
        if not self.fraction or not bool(fresh.any()):
            return {"steps": []} if not self.fraction else state
        learned = batch.keep_rows(fresh).replace(proximal=None, reference={}, signal={}, advantage=None)
        return {"steps": [{"rows": pack_rows(learned), "notes": learned.info}, *state["steps"]][: self.window]}


def _rows_of(step: State, like: Trajectories) -> Trajectories:
    return unpack_rows(step["rows"], like).replace(info=step["notes"])


def _only_groups(batch: Trajectories, names: Tensor) -> Trajectories:
    return batch.keep_rows(torch.isin(batch.group, names))
