"""Advantages by step of an answer, scaled by how sure the policy was (EMPG)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.types import Batch


@dataclass(frozen=True)
class EntropyModulation(Shape):
    r"""Confident steps count more, and a step that leads into a confident one gets a bonus.

    .. math::  A_{i,s} \leftarrow A_i\, g(\tilde H_s) + bonus \cdot f(\tilde H_{s+1}),\qquad
               g = \frac{e^{-scale\,\tilde H}}{\mathrm{mean}\ e^{-scale\,\tilde H}},\quad f = e^{-clarity\,\tilde H}

    :math:`\tilde H_s` is a step's mean entropy before the update, min-max normalised over all steps of the batch. The last step of
    an answer has no bonus. At the end the mean over steps is subtracted.

    Fields:
        scale: larger tells confident and uncertain steps further apart; 0 leaves the advantages alone.
        clarity: larger pays the bonus for the most confident next steps only.
        bonus: size of the bonus; it comes whatever the answer earned. 0 is off.
        centre: ``"steps"`` subtracts the mean over steps, ``"tokens"`` the mean over tokens, ``"none"`` nothing.
        segment: which numbering of decisions makes the steps.
    """

    scope = "step"

    scale: float = 1.0
    clarity: float = 1.0
    bonus: float = 0.05
    centre: Literal["steps", "tokens", "none"] = "steps"
    segment: str = "item"

    def needs(self) -> frozenset[str]:
        return frozenset({f"segment.{self.segment}", "proximal.entropy"})

    def __call__(self, batch: Batch) -> Tensor:
        advantage, on = batch.advantage, batch.sampled > 0
        if advantage is None or batch.proximal is None or batch.proximal.entropy is None or self.segment not in batch.segment:
            raise MethodError(
                f"EntropyModulation needs advantages, the entropy of the proximal policy and segments {self.segment!r}; "
                "this batch lacks one of them."
            )
        if not on.any():
            return advantage
        step, after = steps(batch, self.segment)
        count = _sum(step, torch.ones_like(advantage[on]))
        level = normalised(_sum(step, batch.proximal.entropy[on]) / count)
        scale = modulation(level, self.scale)
        follows = torch.nn.functional.pad((-self.clarity * level).exp()[1:], (0, 1))
        modulated = advantage[on] * scale[step] + self.bonus * torch.where(after, follows, 0.0)[step]
        if self.centre == "tokens":
            modulated = modulated - modulated.mean()
        elif self.centre == "steps":
            modulated = modulated - (_sum(step, modulated) / count).mean()
        return torch.zeros_like(advantage).masked_scatter(on, modulated)


def steps(batch: Batch, segment: str) -> tuple[Tensor, Tensor]:
    """The number of the step each sampled decision belongs to, in the order of rows and steps; whether the row goes on after it."""
    on = batch.sampled > 0
    row = torch.arange(batch.rows, device=on.device).unsqueeze(1).expand_as(on)[on]
    names, step = torch.unique(torch.stack([row, batch.segment[segment][on].long()], 1), dim=0, return_inverse=True)
    after = torch.nn.functional.pad(names[1:, 0] == names[:-1, 0], (0, 1))
    return step, after


def normalised(value: Tensor) -> Tensor:
    """Min-max normalised to [0, 1]; all zero where all are equal."""
    spread = value.max() - value.min()
    return (value - value.min()) / spread if spread >= 1e-8 else torch.zeros_like(value)


def modulation(level: Tensor, scale: float) -> Tensor:
    """Factors that fall with the level, of mean one."""
    factor = (-scale * level).exp()
    return factor / factor.mean()


def _sum(step: Tensor, value: Tensor) -> Tensor:
    return torch.zeros(int(step.max()) + 1, dtype=value.dtype, device=value.device).index_add_(0, step, value)
