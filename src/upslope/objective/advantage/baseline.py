"""Better than what?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Advantage, State, Stateful
from upslope.types import Batch, Metrics


@dataclass(frozen=True)
class RawReward(Advantage):
    """The reward itself, or what it has over a number that is known beforehand. Unbiased, with the largest variance.

    Fields:
        baseline: what is subtracted. 1/2 suits a chance to win, which is 1/2 among equals (Nash-MD).
    """

    baseline: float = 0.0

    def __call__(self, batch: Batch) -> Tensor:
        return batch.per_decision(batch.reward - self.baseline if self.baseline else batch.reward)


@dataclass(frozen=True)
class MovingBaseline(Advantage, Stateful):
    r"""Reward minus a running mean of rewards: :math:`b \leftarrow decay\cdot b + (1-decay)\,\bar R`, after the step.

    Fields:
        decay: nearer to one remembers longer and follows a changing policy more slowly.
    """

    ranges: ClassVar = {"decay": "[0, 1]"}

    decay: float = 0.9

    def init(self) -> State:
        return {"baseline": 0.0}

    def __call__(self, batch: Batch) -> Tensor:
        return batch.per_decision(batch.reward - batch.state[self]["baseline"])

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        return {"baseline": self.decay * state["baseline"] + (1 - self.decay) * float(batch.reward.mean())}


@dataclass(frozen=True)
class GroupBaseline(Advantage):
    r"""Reward minus the mean of its group, optionally divided by the group's spread.

    .. math::  A_i = \frac{r_i - \bar r_{g(i)}}{s_{g(i)} + \epsilon}

    A group whose rewards are all equal carries no signal and gets exactly zero.

    Fields:
        scale: ``"std"`` divides by the group's standard deviation (GRPO); ``"none"`` only centres (Dr.GRPO). Scaling gives rare
            successes more weight and lets nearly solved tasks dominate late in training.
        leave_one_out: centre on the siblings only (RLOO); unbiased, larger variance.
        ddof: 1 is the unbiased spread that libraries use, 0 the population's that most papers print.
        eps: added to the divisor. Libraries differ here (1e-4, 1e-6); it matters for small groups.
        singleton: a group of one has no sibling: ``"zero"`` drops its signal (ours), ``"raw"`` takes the reward itself.
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    scale: Literal["std", "none"] = "std"
    leave_one_out: bool = False
    ddof: int = 1
    eps: float = 1e-6
    singleton: Literal["zero", "raw"] = "zero"

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        stats = batch.group_stats(batch.reward, self.ddof)
        centred = batch.reward - stats.mean
        if self.leave_one_out:
            centred = centred * stats.size / (stats.size - 1).clamp_min(1)
        if self.scale == "std":
            centred = centred / (stats.std + self.eps)
        advantage = centred.masked_fill(stats.constant, 0.0)
        if self.singleton == "raw":
            advantage = torch.where(stats.size == 1, batch.reward, advantage)
        return batch.per_decision(advantage)
