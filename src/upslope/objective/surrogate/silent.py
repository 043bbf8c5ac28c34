"""No surrogate: what is learned comes from the further terms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.types import Batch


@dataclass(frozen=True)
class NoSurrogate(Surrogate):
    """Zero everywhere: a method that learns from its `regularize` terms alone."""

    def takes(self, branches: tuple[str, ...]) -> bool:
        return True

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        return torch.zeros_like(batch.sampled), {}
