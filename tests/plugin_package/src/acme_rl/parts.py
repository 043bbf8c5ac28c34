"""Parts: every class here with a public name is known as ``acme-rl/kind.Class``."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from upslope.parts import Shape
from upslope.types import Batch


@dataclass(frozen=True)
class SoftenNegative(Shape):
    """Advantages below zero times a factor; 1 leaves them as they are, 0 learns from good answers only.

    Fields:
        factor: smaller pushes away less from bad answers.
    """

    scope = "step"
    ranges: ClassVar = {"factor": "[0, 1]"}

    factor: float = 0.5

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.where(batch.advantage < 0, self.factor * batch.advantage, batch.advantage)
