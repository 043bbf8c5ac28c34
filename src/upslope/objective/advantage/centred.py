"""Advantages from a value function, and on which side of the median?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.gae import GAE
from upslope.types import Batch


@dataclass(frozen=True)
class CentredGAE(GAE):
    r"""`GAE`, which also says how far the return lies above the state's median: the direction of `BoundedRatio` (BPO).

    .. math::  Q = A + V, \qquad  \tilde A = Q - u

    Q is written to ``signal["returns"]`` and :math:`\tilde A` to ``signal["centred"]``.

    Fields:
        centre: ``"median"`` takes u from the head of that name; ``"value"`` from the value function, so that the direction is the
            advantage's own sign.
    """

    centre: Literal["median", "value"] = "median"

    def needs(self) -> frozenset[str]:
        return super().needs() | {f"proximal.{self.centre}"}

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        found = dict(super().signals(batch, advantage))
        if batch.proximal is None or self.centre not in batch.proximal.columns():
            raise MethodError(f"CentredGAE needs the head {self.centre!r}: give the method models={{'{self.centre}': ...}}.")
        return found | {"centred": (found["returns"] - batch.proximal[self.centre]) * batch.sampled}
