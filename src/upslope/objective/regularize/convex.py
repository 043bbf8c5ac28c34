"""Between two anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Regularizer
from upslope.objective.regularize.kl import Estimator, ReferenceKL
from upslope.types import Batch


@dataclass(frozen=True)
class ConvexKL(Regularizer):
    r"""Distance to two references at once (ReMix).

    .. math::  weight\,[share\,KL(\pi\|\pi_{start}) + (1-share)\,KL(\pi\|\pi_{previous})]

    Fields:
        weight: larger moves more slowly and stays nearer to both.
        share: of the policy as the run began. Less lets the policy wander further, as long as no single step is large. A
            reference with a share of 0 is not computed.
        estimator, limit: as in `ReferenceKL`.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "limit": "(0, inf]"}

    weight: float = 0.04
    share: float = 1.0
    estimator: Estimator = "k3"
    limit: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise MethodError(f"ConvexKL.share is {self.share}; it is a share, from 0 to 1.")

    def _terms(self) -> tuple[ReferenceKL, ...]:
        shares = {"start": self.share, "previous": 1 - self.share}
        return tuple(ReferenceKL(self.weight * share, self.estimator, name, self.limit) for name, share in shares.items())

    def needs(self) -> frozenset[str]:
        return frozenset().union(*(term.needs() for term in self._terms()))

    def __call__(self, batch: Batch) -> Tensor:
        start, previous = (term(batch) for term in self._terms())
        return start + previous
