"""A target for the ratio that follows the heads as they are fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes
from upslope.objective.surrogate.bounded import BoundedRatio
from upslope.types import Batch


@dataclass(frozen=True)
class FittedRatio(BoundedRatio):
    r"""`BoundedRatio` with the value and the median of the current update instead of those before the step (BPO).

    .. math::  A = Q - V_\theta, \qquad  \tilde A = Q - u_\theta

    both without gradient; Q is ``signal["returns"]``. Early in a run the returns of all actions lie on one side of what was learned
    from the last rollout; heads that have seen this one tell good from bad.

    Fields:
        centre: ``"median"`` takes u from the head of that name, ``"value"`` the value itself.
    """

    centre: Literal["median", "value"] = "median"

    def needs(self) -> frozenset[str]:
        return frozenset({"current.value", f"current.{self.centre}"})

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        if batch.current is None or "returns" not in batch.signal:
            raise MethodError("FittedRatio needs the current heads and the advantage's returns; use GAE as the advantage.")
        returns = batch.signal["returns"]
        distance = returns - batch.current[self.centre].detach()
        seen = batch.replace(
            advantage=(returns - batch.current["value"].detach()) * batch.sampled,
            signal={**batch.signal, "centred": distance * batch.sampled},
        )
        return super().__call__(seen, branches)
