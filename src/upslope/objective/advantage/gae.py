"""Advantages from a value function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.objective.functional.last_decision import last_decision
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

    ranges: ClassVar = {"gamma": "[0, 1]", "lam": "[0, 1]"}

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
        on = batch.sampled > 0
        nearest = backward_scan(torch.where(on, 0.0, 1.0), torch.where(on, value, 0.0))  # of this or the next sampled position
        following = F.pad(nearest[:, 1:], (0, 1))
        error = reward + self.gamma * torch.where(goes_on, following, behind) - value
        trace = goes_on.to(value.dtype) * (self.gamma * self.lam)
        return backward_scan(torch.where(on, trace, 1.0), torch.where(on, error, 0.0)) * batch.sampled

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        assert batch.proximal is not None and batch.proximal.value is not None
        return {"returns": advantage + batch.proximal.value}


def backward_scan(decay: Tensor, added: Tensor) -> Tensor:
    r""":math:`x_t = a_t + d_t x_{t+1}` along the last axis, :math:`x_{T} = 0`, by doubling: log T steps on whole columns."""
    reach = 1
    while reach < added.shape[-1]:
        ahead = F.pad(added[..., reach:], (0, reach))
        added = added + decay * ahead
        decay = decay * F.pad(decay[..., reach:], (0, reach))
        reach *= 2
    return added


def paid(batch: Batch) -> Tensor:
    """Reward per decision ``[N, T]``: the step rewards, and the row's reward at its last sampled decision."""
    steps = torch.zeros_like(batch.sampled) if batch.step_reward is None else batch.step_reward
    return steps + last_decision(batch.sampled) * batch.reward.unsqueeze(1)
