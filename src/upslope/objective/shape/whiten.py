"""Advantages, rescaled how?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    ranges: ClassVar = {"eps": "[0, inf)"}

    eps: float = 1e-8

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("whitening needs advantages, and this batch has none yet.")
        on = (batch.sampled if batch.counted is None else batch.counted) > 0
        count = on.sum()
        mean = torch.where(on, batch.advantage, 0.0).sum() / count.clamp_min(1)
        centred = batch.advantage - mean
        spread = (torch.where(on, centred, 0.0).square().sum() / (count - 1).clamp_min(1)).sqrt()
        low = torch.where(on, batch.advantage, torch.inf).amin() if on.numel() else mean
        high = torch.where(on, batch.advantage, -torch.inf).amax() if on.numel() else mean
        # Decided by masks, not by branches: those would wait for the device in every update.
        scaled = torch.where(low == high, 0.0, centred / (spread + self.eps) * batch.sampled)
        return torch.where(count < 2, batch.advantage, scaled)
