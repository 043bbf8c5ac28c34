"""A trust region around where the step began, for rows that others sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, check_region, pessimistic
from upslope.types import Batch


@dataclass(frozen=True)
class ShiftedClip(Surrogate):
    r"""PPO's clip with its window around :math:`c = \pi_k/\mu` (ReMix): :math:`-\min(rA,\ \mathrm{clip}(r, c-low, c+high)\,A)`.

    A window around one would say nothing about this step's change where rows are old: half of them would begin outside of it.
    With c = 1, on fresh rows, it is PPO's.

    Fields:
        low, high: how far the ratio may move away from c. Relative to c that is more where the row has become unlikely.
    """

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        check_region(self)

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token", "centre")

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch, centre), advantage = branches, advantage_of(batch)
        free = branch.value * advantage
        bounded = torch.minimum(torch.maximum(branch.value, centre.value - self.low), centre.value + self.high) * advantage
        return pessimistic(free, bounded, advantage)
