"""Tokens that good and bad answers share, and answers that are too uncertain to learn from (GTPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import State, Stateful, Weight
from upslope.types import Batch, Metrics, View


@dataclass(frozen=True)
class ConflictTokens(Weight):
    r"""Tokens shared by good and bad answers of a group are never punished, and reinforced more.

    A decision *conflicts* when its group has the same token at the same place in an answer with A > 0 and in one with A < 0. The
    forward set is the unbroken run of conflicts at an answer's start, the backward set the one at its end (places counted from
    the end). CacheWriter count sampled decisions.

    .. math::  \lambda_t = \lambda^{fwd}_t \lambda^{bwd}_t,\qquad
               \lambda^{set}_t = \begin{cases} boost & t \in set, A > 0\\ 0 & t \in set, A < 0\\ 1 & \text{else}\end{cases}

    Fields:
        boost: factor of shared tokens in good answers. 1 only protects them; larger also makes the format firmer.
        divide: divide an answer's loss by the length of its longer run, as the released code does.
    """

    scope = "update"

    boost: float = 2.0
    divide: bool = False

    def __post_init__(self) -> None:
        if not self.boost >= 0:
            raise MethodError(f"ConflictTokens.boost is {self.boost}; it is 0 or above.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def runs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The forward and the backward set, as booleans ``[N, T]``."""
        on = batch.sampled > 0
        before = on.long().cumsum(1) - 1
        behind = on.flip(1).long().cumsum(1).flip(1) - 1
        forward = on & _conflicts(batch, before)
        backward = on & _conflicts(batch, behind)
        broken = (on & ~forward).long().cumsum(1)
        broken_behind = (on & ~backward).flip(1).long().cumsum(1).flip(1)
        return forward & (broken == 0), backward & (broken_behind == 0)

    def __call__(self, batch: Batch) -> Tensor:
        forward, backward = self.runs(batch)
        advantage = batch.advantage
        assert advantage is not None
        inside = torch.where(advantage > 0, self.boost, torch.where(advantage < 0, 0.0, 1.0))
        weight = torch.where(forward, inside, 1.0) * torch.where(backward, inside, 1.0)
        if self.divide:
            longest = torch.maximum(forward.sum(1), backward.sum(1)).clamp_min(1).unsqueeze(1)
            weight = weight / torch.where(advantage != 0, longest, 1)
        return weight


def _conflicts(batch: Batch, place: Tensor) -> Tensor:
    """Where the group has this token at this place under both signs of the advantage, ``[N, T]``."""
    if batch.action is None or batch.action.dim() != 2 or batch.action.is_floating_point():
        raise MethodError("ConflictTokens compares tokens, and the actions of this batch are not single ids.")
    if batch.advantage is None:
        raise MethodError("ConflictTokens needs advantages, and this batch has none yet.")
    on = batch.sampled > 0
    if not on.any():
        return on
    group = batch.group_index()[0].unsqueeze(1).expand_as(on)[on]
    spot = torch.stack([group, place[on], batch.action[on].long()], 1)
    names, index = torch.unique(spot, dim=0, return_inverse=True)
    sign = batch.advantage[on].sign()
    good, bad = (
        torch.zeros(len(names), dtype=sign.dtype, device=sign.device).index_add_(0, index, (sign == which).to(sign.dtype)) > 0
        for which in (1, -1)
    )
    return torch.zeros_like(on).masked_scatter(on, (good & bad)[index])


def row_entropy(batch: Batch, view: View | None) -> Tensor:
    """Mean entropy of each row ``[N]``, without gradient."""
    if view is None or view.entropy is None:
        raise MethodError("this part reads the entropy of each answer, and the policy's view in this batch has none.")
    return batch.row_mean(torch.where(batch.sampled > 0, view.entropy.detach(), 0.0))


@dataclass(frozen=True)
class EntropyCutoff(Weight, Stateful):
    r"""Answers whose mean entropy is above a threshold do not learn, unless the policy began above it.

    .. math::  \delta_i = 0 \text{ if } \langle H\rangle_{first} < threshold < \langle H\rangle_i, \text{ else } 1

    They still count in the means.

    Fields:
        threshold: mean entropy per token, in nats. The paper's is ln 2: two equally likely tokens everywhere. Infinite: off.
        condition: ``"first"`` looks at the mean entropy of the first step's answers as above; ``"always"`` cuts whatever the policy
            began with, as the released code does (at 0.7).
    """

    scope = "update"

    threshold: float = math.log(2)
    condition: Literal["first", "always"] = "first"

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise MethodError(f"EntropyCutoff.threshold is {self.threshold}; it is above 0.")

    def needs(self) -> frozenset[str]:
        # What the sampler recorded is there for every row at the end of a step, when the first entropy is written down.
        return frozenset({"proximal.entropy", "behavior.entropy"} if self.condition == "first" else {"proximal.entropy"})

    def init(self) -> State:
        return {"first": -1.0}

    def __call__(self, batch: Batch) -> Tensor:
        entropy = row_entropy(batch, batch.proximal)
        low = entropy <= self.threshold
        if self.condition == "first":
            first = batch.state[self]["first"]
            # In the first step the answers at hand are the first ones.
            low = low | ((first if first >= 0 else _mean(batch, entropy)) >= self.threshold)
        return low.to(batch.sampled.dtype).unsqueeze(1).expand_as(batch.sampled)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        if self.condition != "first" or state["first"] >= 0:
            return state
        return {"first": _mean(batch, row_entropy(batch, batch.behavior))}


def _mean(batch: Batch, per_row: Tensor) -> float:
    there = batch.lengths() > 0
    return float(per_row[there].mean()) if bool(there.any()) else 0.0
