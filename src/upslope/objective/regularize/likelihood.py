"""Terms that hold the policy to its data: their likelihood, and the distance already gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Regularizer
from upslope.objective.ratio import log_ratio
from upslope.objective.surrogate import finite_logp
from upslope.types import Batch


@dataclass(frozen=True)
class LikelihoodBonus(Regularizer):
    r"""A share of plain imitation of all that was sampled: :math:`-weight \cdot \log\pi_\theta` (AsymRE).

    The same as lowering every baseline by ``weight``: wrong answers are pushed down less than right ones are pulled up.

    Fields:
        weight: larger is safer on old data and learns less from failures.
    """

    ranges: ClassVar = {"weight": "(-inf, inf)"}

    weight: float = 0.1

    def __call__(self, batch: Batch) -> Tensor:
        return -self.weight * finite_logp(batch)


@dataclass(frozen=True)
class ProximalPenalty(Regularizer):
    r"""The squared log-ratio: :math:`weight \cdot (\log\pi_\theta - \log\pi_{old})^2` (OPMD).

    Zero with zero gradient at a step's first update; it takes the place of a clip in later ones.

    Fields:
        weight: larger keeps the policy nearer to where the step began.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 0.1

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.logp"})

    def __call__(self, batch: Batch) -> Tensor:
        return self.weight * log_ratio(batch).square()
