"""A method of one's own: GRPO in which bad answers push with half their force.

upslope show examples/my_method.py
upslope train examples/my_method.py --task reverse
"""

from dataclasses import dataclass

import torch

from upslope.methods import grpo
from upslope.parts import Shape
from upslope.types import Batch, Paper


@dataclass(frozen=True)
class SoftenNegative(Shape):
    """Advantages below zero times a factor; 1 leaves them as they are, 0 learns from good answers only."""

    scope = "step"

    factor: float = 0.5

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.where(batch.advantage < 0, self.factor * batch.advantage, batch.advantage)


soft_grpo = grpo.derive(
    name="soft-grpo",
    paper=Paper("A note of mine", year=2026),
    differs="bad answers push away with half their force",
    formula="L as grpo, with A < 0 replaced by A / 2",
    shape=SoftenNegative(),
)
