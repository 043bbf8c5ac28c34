"""A median of the returns, learned beside the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Model
from upslope.types import Batch


@dataclass(frozen=True)
class MedianFunction(Model):
    r"""A head under the name ``median`` that splits the returns of a state in two halves (BPO).

    .. math::  L = weight \cdot s\,\big[\mathrm{softplus}(x) - x/2\big], \qquad x = (R - u)/s

    Its minimum is where :math:`E\,\sigma((R - u)/s) = 1/2`: the median of returns that spread much wider than ``softness``, and
    nearly their mean where they spread less.

    Fields:
        weight: of this loss beside the policy's.
        softness: s; smaller comes nearer to the median and learns less from what is far away.
        lr_scale: its learning rate as a multiple of the policy's.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "lr_scale": "[0, inf)"}

    weight: float = 0.5
    softness: float = 1.0
    lr_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.softness > 0:
            raise MethodError(f"MedianFunction.softness is {self.softness:g}; it is above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"current.median"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.current is None or "returns" not in batch.signal:
            raise MethodError("the median needs its own output and the advantage's returns; use CentredGAE as the advantage.")
        distance = (batch.signal["returns"] - batch.current["median"]) / self.softness
        return self.weight * self.softness * (F.softplus(distance) - distance / 2)
