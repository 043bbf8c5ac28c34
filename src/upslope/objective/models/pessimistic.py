"""A pessimistic value function: the soft minimum of several heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Model
from upslope.types import Batch, Head


@dataclass(frozen=True)
class PessimisticValue(Model):
    r"""The soft minimum of several value heads, fitted to ``signal["returns"]`` with a robust loss (SAFE).

    .. math::  V = -\alpha\Big(\log\sum_k e^{-V_k/\alpha} - \log K\Big), \qquad
               L = \frac{weight}{2}\big(h(V - R) + h(\mathrm{clip}(V, V_{old} \pm clip) - R)\big)

    h is Huber's loss: half the square up to ``delta``, then straight on.

    Fields:
        weight: of this loss beside the policy's.
        outputs: how many heads; more are more pessimistic.
        softness: :math:`\alpha`. Small takes the lowest head, large their mean.
        delta: where the loss becomes straight. Smaller learns less from surprising returns.
        clip: how far one step may move the value in the second term; infinite: freely.
        lr_scale: its learning rate as a multiple of the policy's.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "lr_scale": "[0, inf)"}

    weight: float = 0.5
    outputs: int = 2
    softness: float = 0.3
    delta: float = 0.5
    clip: float = 0.2
    lr_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise MethodError(f"PessimisticValue.outputs is {self.outputs}; it takes at least one head.")
        for name in ("softness", "delta", "clip"):
            if not getattr(self, name) > 0:
                raise MethodError(f"PessimisticValue.{name} is {getattr(self, name):g}; it is above 0.")

    def head(self) -> Head:
        return Head(self.outputs, self.softness)

    def needs(self) -> frozenset[str]:
        return frozenset({"current.value", "proximal.value"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.current is None or batch.current.value is None or "returns" not in batch.signal:
            raise MethodError("the value needs its own output and the advantage's returns; use ValueBaseline or GAE.")
        assert batch.proximal is not None and batch.proximal.value is not None
        value, old, returns = batch.current.value, batch.proximal.value, batch.signal["returns"]
        near = value if math.isinf(self.clip) else old + (value - old).clamp(-self.clip, self.clip)
        return self.weight / 2 * (huber(value - returns, self.delta) + huber(near - returns, self.delta))


def huber(error: Tensor, delta: float) -> Tensor:
    """Half the square up to ``delta``, a straight line of that slope beyond."""
    size = error.abs()
    return torch.where(size <= delta, error.square() / 2, delta * (size - delta / 2))
