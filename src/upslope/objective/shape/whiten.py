"""Advantages, rescaled how?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.types import Batch


@dataclass(frozen=True)
class Whiten(Shape):
    """Mean zero and spread one over the decisions of the update (PPO).

    Fewer than two decisions are left as they are (their spread is undefined); equal ones become exactly zero.
    """

    scope = "update"

    eps: float = 1e-8

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("whitening needs advantages, and this batch has none yet.")
        on = (batch.sampled if batch.counted is None else batch.counted) > 0
        values = batch.advantage[on]
        if values.numel() < 2:
            return batch.advantage
        if values.min() == values.max():
            return torch.zeros_like(batch.advantage)
        return (batch.advantage - values.mean()) / (values.std() + self.eps) * batch.sampled
