"""Better than what?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage, Remembers, State
from upslope.types import Batch, Ended, Metrics


@dataclass(frozen=True)
class RawReward(Advantage):
    """The reward itself: a baseline of zero. Unbiased, with the largest variance."""

    def __call__(self, batch: Batch) -> Tensor:
        return batch.per_decision(batch.reward)


@dataclass(frozen=True)
class MovingBaseline(Advantage, Remembers):
    r"""Reward minus a running mean of rewards: :math:`b \leftarrow decay\cdot b + (1-decay)\,\bar R`, after the step.

    Fields:
        decay: nearer to one remembers longer and follows a changing policy more slowly.
    """

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


@dataclass(frozen=True)
class GAE(Advantage):
    r"""Generalised advantage estimation from a value function.

    .. math::  \delta_t = \rho_t + \gamma V_{t+1} - V_t, \qquad A_t = \sum_l (\gamma\lambda)^l \delta_{t+l}

    :math:`V_{t+1}` is 0 behind a termination and ``bootstrap`` behind a truncation or a pause. Positions that were not sampled
    (tool output) are passed over: the next value and the running sum go through them unchanged. Writes ``signal["returns"]``,
    :math:`A + V` before any whitening.

    Fields:
        gamma: discount. Below one prefers early reward and lowers variance.
        lam: 1 is the Monte-Carlo return minus V, 0 the one-step error. Lower trusts the value function more.
    """

    gamma: float = 0.99
    lam: float = 0.95

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.value"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.value is None:
            raise MethodError("GAE needs a value function: give the method models={'value': ValueFunction()}.")
        value, reward = batch.proximal.value, paid(batch)
        ended = batch.ended if batch.ended is not None else torch.zeros_like(batch.sampled, dtype=torch.int8)
        goes_on = ended == Ended.NO
        behind = torch.zeros_like(value) if batch.bootstrap is None else batch.bootstrap
        behind = torch.where(ended == Ended.TERMINATED, 0.0, behind)
        trace = goes_on.to(value.dtype) * (self.gamma * self.lam)
        on = batch.sampled > 0
        advantage = torch.zeros_like(value)
        running, following = torch.zeros_like(value[:, 0]), torch.zeros_like(value[:, 0])
        for t in reversed(range(value.shape[1])):
            next_value = torch.where(goes_on[:, t], following, behind[:, t])
            here = reward[:, t] + self.gamma * next_value - value[:, t] + trace[:, t] * running
            running = torch.where(on[:, t], here, running)
            following = torch.where(on[:, t], value[:, t], following)
            advantage[:, t] = running
        return advantage * batch.sampled

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        assert batch.proximal is not None and batch.proximal.value is not None
        return {"returns": advantage + batch.proximal.value}


def paid(batch: Batch) -> Tensor:
    """Reward per decision ``[N, T]``: the step rewards, and the row's reward at its last sampled decision."""
    on = batch.sampled > 0
    last = on & (on.flip(1).cumsum(1).flip(1) == 1)
    steps = torch.zeros_like(batch.sampled) if batch.step_reward is None else batch.step_reward
    return steps + last * batch.reward.unsqueeze(1)
