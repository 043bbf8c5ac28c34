"""What else is learned: how likely a prompt's answers are to be right, before there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Model
from upslope.types import Batch, Head


@dataclass(frozen=True)
class PromptValue(Model):
    r"""A head under the name ``prompt_value`` that predicts at a prompt's end the mean reward of its group (PCL).

    .. math::  L = weight \cdot \frac1G \sum_x \big(V(x) - \bar r_x\big)^2, \qquad V = \sigma(\text{head})

    over the groups of an update, with rewards cut to [0, 1].

    Fields:
        weight: of this loss beside the policy's.
        lr_scale: the head's learning rate as a multiple of the policy's.
        shared: its loss changes what the policy makes of a prompt, as a critic's does. If not, the head only reads that, and the
            policy learns as if there were none: enough for a large model, while a small one may not know how hard a prompt is.
    """

    text_only: ClassVar[bool] = True
    aggregated: ClassVar[bool] = False
    ranges: ClassVar = {"weight": "[0, inf)", "lr_scale": "[0, inf)"}

    weight: float = 1.0
    lr_scale: float = 1.0
    shared: bool = True

    def head(self) -> Head:
        return Head(detached=not self.shared)

    def needs(self) -> frozenset[str]:
        return frozenset({"current.prompt_value", "group"})

    def prepare(self, batch: Batch) -> Tensor:
        """Of each decision ``[N, T, 2]`` its group's success, and what it counts: the first of a row does, and all groups alike."""
        success = batch.group_stats(batch.reward.clamp(0, 1)).mean
        there = (batch.lengths() > 0).to(batch.reward)
        index, groups = batch.group_index()
        rows = torch.zeros(groups, dtype=there.dtype, device=there.device).index_add_(0, index, there)
        counts = there / (rows[index].clamp_min(1) * (rows > 0).sum().clamp_min(1))
        begins = (batch.sampled > 0) & (batch.sampled.cumsum(1) <= 1)  # what predicts the first token has read the prompt alone
        return torch.stack([batch.per_decision(success), counts.unsqueeze(1) * begins], -1)

    def __call__(self, batch: Batch) -> Tensor:
        if batch.current is None:
            raise MethodError("the value of prompts needs its own output.")
        success, counts = batch.prepared[self].unbind(-1)
        return self.weight * counts * (batch.current["prompt_value"].sigmoid() - success).square()
