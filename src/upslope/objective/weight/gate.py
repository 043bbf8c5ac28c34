"""As much as a gate lets through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class GateWeight(Weight):
    """Each row times the weight that `Demonstrations` wrote as ``signal["gate"]``; without one every row counts one.

    A row of weight zero still counts in the denominators.
    """

    scope = "update"

    def __call__(self, batch: Batch) -> Tensor:
        gate = batch.signal.get("gate")
        if gate is None:
            return torch.ones_like(batch.sampled)
        return gate.to(batch.sampled.dtype).unsqueeze(1).expand_as(batch.sampled)
