"""What else is learned: the value function of PPO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Model
from upslope.types import Batch


@dataclass(frozen=True)
class ValueFunction(Model):
    r"""A value head, fitted with the policy to ``signal["returns"]``.

    .. math::  L = \frac{weight}{2}\max\big((V - R)^2,\ (\mathrm{clip}(V, V_{old} \pm clip) - R)^2\big)

    Fields:
        weight: of this loss beside the policy's.
        clip: how far one step may move the value; infinite: freely.
        lr_scale: its learning rate as a multiple of the policy's.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "clip": "(0, inf]", "lr_scale": "[0, inf)"}

    weight: float = 0.5
    clip: float = math.inf
    lr_scale: float = 1.0

    def needs(self) -> frozenset[str]:
        return frozenset({"current.value", "proximal.value"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.current is None or batch.current.value is None or "returns" not in batch.signal:
            raise MethodError("the value function needs its own output and the advantage's returns; use GAE as the advantage.")
        returns = batch.signal["returns"]
        loss = (batch.current.value - returns).square()
        if math.isfinite(self.clip):
            assert batch.proximal is not None and batch.proximal.value is not None
            old = batch.proximal.value
            near = old + (batch.current.value - old).clamp(-self.clip, self.clip)
            loss = torch.maximum(loss, (near - returns).square())
        return 0.5 * self.weight * loss
