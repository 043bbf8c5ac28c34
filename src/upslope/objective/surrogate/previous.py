"""A trust region for rows of an earlier step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, check_region, pessimistic
from upslope.types import Batch


@dataclass(frozen=True)
class PreviousClip(Surrogate):
    r"""PPO's clip in the two forms in which PIPO has it.

    Fields:
        low, high: the trust region. The rows are one step old, so the ratio has left one before the update begins.
        form: ``"pessimistic"`` is PPO's :math:`-\min(rC,\ \mathrm{clip}(r)\,C)`. ``"upper"`` is that of the released code,
            :math:`-\min(r, 1+high)\,C`: no lower bound, and a bad row that has become likelier is not pushed down any more.
    """

    low: float = 0.2
    high: float = 0.2
    form: Literal["pessimistic", "upper"] = "pessimistic"

    def __post_init__(self) -> None:
        check_region(self)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        if self.form == "upper":
            return -branch.value.clamp(max=1 + self.high) * advantage, {"clipped_high": branch.value > 1 + self.high}
        free = branch.value * advantage
        bounded = branch.value.clamp(1 - self.low, 1 + self.high) * advantage
        return pessimistic(free, bounded, advantage)
