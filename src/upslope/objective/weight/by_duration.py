"""Slow actions count for as long as they took (RL for machine learning engineering agents)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class ByDuration(Weight):
    r"""Each action times how long it took: :math:`w_k = \Delta t_k / \overline{\Delta t}`, the mean over the update's actions.

    Where actors act side by side for a given time, an action that takes :math:`\Delta t` comes back about :math:`1/\Delta t` as
    often as it is chosen, and a plain sum of gradients learns to be fast. The weight undoes that where slow actions are cut off at
    the end of a window; it cannot bring back those that were dropped for coming late, and where nothing is dropped there is nothing
    to undo. Durations that are all equal give exactly 1, and so does what nobody measured.

    Fields:
        unit: what an action is: the name of a segment, such as ``turn``; empty is the whole row.
    """

    scope = "update"

    unit: str = ""

    def needs(self) -> frozenset[str]:
        return frozenset({"seconds"} | ({f"segment.{self.unit}"} if self.unit else set()))

    def __call__(self, batch: Batch) -> Tensor:
        ones = torch.ones_like(batch.sampled)
        if batch.seconds is None:
            return ones
        action, count = self._actions(batch)
        on = batch.sampled > 0
        took = torch.zeros(count, dtype=ones.dtype, device=ones.device)
        took.index_add_(0, action[on], batch.seconds[on].to(ones.dtype))
        there = torch.zeros_like(took).index_add_(0, action[on], ones[on]) > 0
        known = there & ~took.isnan()
        durations = took[known]
        if len(wrong := durations[~durations.isfinite() | (durations < 0)]):
            raise MethodError(f"an action took {wrong[0].item():g} s; times are finite and not below 0.")
        # Equality is decided on the values themselves: a mean of equal floats can differ from them in the last bit.
        if not len(durations) or bool(durations.min() == durations.max()):
            return ones
        weight = torch.where(known, took / durations.mean(), 1.0)
        return torch.where(on, weight[action], 1.0)

    def _actions(self, batch: Batch) -> tuple[Tensor, int]:
        """The number of the action that each decision belongs to ``[N, T]``, and how many there are."""
        row = torch.arange(batch.rows, device=batch.sampled.device).unsqueeze(1).expand_as(batch.sampled)
        if not self.unit:
            return row, batch.rows
        segment = batch.segment[self.unit]
        names, action = torch.unique(torch.stack([row, segment.to(row.dtype)], -1).flatten(0, 1), dim=0, return_inverse=True)
        return action.view_as(row), len(names)
