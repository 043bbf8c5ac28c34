"""Advantages from a value function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.types import Batch, Ended


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
