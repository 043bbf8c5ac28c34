"""Which trust region? Each surrogate is a loss per decision; ``A`` is the advantage, ``u`` the ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.types import Batch, Part


def advantage_of(batch: Batch) -> Tensor:
    """The advantage; refused where there is none yet."""
    if batch.advantage is None:
        raise MethodError("a surrogate needs advantages, and this batch has none yet.")
    return batch.advantage


def mixed(branches: tuple[Branch, ...], values: list[Tensor]) -> Tensor:
    """One value from those of the branches, by their weights."""
    if len(branches) == 1:
        return values[0]
    return sum((branch.weight * value for branch, value in zip(branches, values, strict=True)), torch.zeros_like(values[0]))


def clip_notes(free: Tensor, bounded: Tensor, advantage: Tensor) -> Notes:
    """Where the bound is what counts, apart by the sign of the advantage."""
    clipped = bounded < free
    return {"clipped_high": clipped & (advantage > 0), "clipped_low": clipped & (advantage < 0)}


def pessimistic(free: Tensor, bounded: Tensor, advantage: Tensor, dual: float = math.inf) -> tuple[Tensor, Notes]:
    r"""Loss and notes of a clip that takes the worse of two gains ``[N, T]``: :math:`-\max(\min(free, bounded),\ dual \cdot A)`.

    ``dual`` bounds what is lost where A < 0 and nowhere else; infinite, it bounds nothing.
    """
    gain, notes = torch.minimum(free, bounded), clip_notes(free, bounded, advantage)
    if math.isfinite(dual):
        floor = torch.where(advantage < 0, dual * advantage, -torch.inf)
        notes["clipped_dual"] = floor > gain
        gain = torch.maximum(gain, floor)
    return -gain, notes


@dataclass(frozen=True)
class LogLikelihood(Surrogate):
    r"""The score function itself: :math:`-A \log\pi_\theta`. Right for data of the current policy only."""

    def takes(self, branches: tuple[str, ...]) -> bool:
        return not branches

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        return -advantage_of(batch) * finite_logp(batch), {}


def finite_logp(batch: Batch) -> Tensor:
    """Current log-probabilities, zero without gradient where they are infinite or NaN."""
    assert batch.current is not None
    logp = batch.current.logp
    return torch.where(logp.isfinite(), logp, 0.0)


@dataclass(frozen=True)
class Unclipped(Surrogate):
    r"""Importance weighting without a bound: :math:`-u A`. Branches, if several, are mixed."""

    def takes(self, branches: tuple[str, ...]) -> bool:
        return bool(branches)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        return -mixed(branches, [branch.value for branch in branches]) * advantage_of(batch), {}


def check_region(part: Any) -> None:
    """Refuses a trust region that does not hold one."""
    if not (part.low >= 0 and part.high >= 0):
        raise MethodError(
            f"{type(part).__name__} has low={part.low:g} and high={part.high:g}; a trust region needs both at 0 or above."
        )


@dataclass(frozen=True)
class Bounds(Part):
    """A trust region around one. Wider learns faster and strays further."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        check_region(self)

    def clip(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.low, 1 + self.high)


@dataclass(frozen=True)
class PessimisticClip(Surrogate):
    r"""The worse of the ratio and the clipped ratio (PPO): :math:`-\min(uA,\ \mathrm{clip}(u, 1-low, 1+high)\,A)`.

    Fields:
        low, high: how far the ratio may move before its gradient stops. A higher ``high`` lets rare tokens grow (DAPO).
        dual: where A < 0, the loss is no larger than :math:`-dual \cdot A`: a bound on what one very unlikely bad token can do.
            Infinite: none.
    """

    ranges: ClassVar = {"dual": "(1, inf]"}

    low: float = 0.2
    high: float = 0.2
    dual: float = math.inf

    def __post_init__(self) -> None:
        check_region(self)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        free = branch.value * advantage
        bounded = branch.value.clamp(1 - self.low, 1 + self.high) * advantage
        return pessimistic(free, bounded, advantage, self.dual)


@dataclass(frozen=True)
class BranchClip(Surrogate):
    r"""Each branch clipped in its own trust region, then mixed (DHPO).

    .. math::
        \bar r = \mathrm{clip}(r, token),\quad \bar s = \mathrm{clip}(s, sequence),\quad
        u = w r + (1-w) s,\quad \bar u = w\bar r + (1-w)\bar s,\quad  L = -\min(uA, \bar uA)

    Fields:
        token, sequence: the two trust regions. A length-normalised ratio stays near one, so its region is far narrower; for
            responses of T tokens a value near ``token / sqrt(T)`` clips both about equally often.
        form: ``"single_min"`` as above; ``"per_branch_min"`` is :math:`w\min(rA,\bar rA) + (1-w)\min(sA,\bar sA)`, equal except
            where the branches leave on opposite sides, and more pessimistic there.
    """

    token: Bounds = Bounds(0.2, 0.28)
    sequence: Bounds = Bounds(3e-4, 4e-4)
    form: Literal["single_min", "per_branch_min"] = "single_min"

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token", "sequence")

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        advantage = advantage_of(batch)
        free = [branch.value * advantage for branch in branches]
        bounded = [
            bounds.clip(branch.value) * advantage for bounds, branch in zip((self.token, self.sequence), branches, strict=True)
        ]
        if self.form == "single_min":
            gain = torch.minimum(mixed(branches, free), mixed(branches, bounded))
        else:
            gain = mixed(branches, [torch.minimum(f, b) for f, b in zip(free, bounded, strict=True)])
        notes = clip_notes(mixed(branches, free), mixed(branches, bounded), advantage)
        notes |= {f"clipped_{branch.name}": b < f for branch, f, b in zip(branches, free, bounded, strict=True)}
        return -gain, notes


@dataclass(frozen=True)
class ClippedWeight(Surrogate):
    r"""The importance weight is clipped, never the gradient (CISPO): :math:`-sg[\mathrm{clip}(r, 1-low, 1+high)]\,A\log\pi_\theta`.

    Fields:
        low: 1 means no lower bound, as in the paper.
        high: where the weight saturates.
    """

    low: float = 1.0
    high: float = 5.0

    def __post_init__(self) -> None:
        check_region(self)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        ratio = branch.value.detach()
        weight = ratio.clamp(1 - self.low, 1 + self.high)
        notes = {"clipped_high": ratio > 1 + self.high, "clipped_low": ratio < 1 - self.low}
        return -weight * advantage * finite_logp(batch), notes


@dataclass(frozen=True)
class GeometricMean(Surrogate):
    r"""Geometric mean of token ratios, clipped per token in log space (GMPO).

    .. math::  c_t = \mathrm{sgn}(A)\min(\mathrm{sgn}(A) d_t,\ \mathrm{sgn}(A)\,\mathrm{clip}(d_t, -low, high)),\qquad
               L_i = -\bar A_i \exp\Big(\frac{1}{T_i}\sum_t c_t\Big)

    The row's loss stands on each of its decisions, so that a mean over tokens gives it back.

    Fields:
        low, high: range of the log-ratio; ±0.4 is far wider than PPO's and affordable because outliers count once in a mean.
    """

    scope = "sequence"

    low: float = 0.4
    high: float = 0.4

    def __post_init__(self) -> None:
        check_region(self)

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        sign = advantage.sign()
        bounded = branch.log.clamp(-self.low, self.high)
        clipped = sign * torch.minimum(sign * branch.log, sign * bounded)
        ratio = batch.row_mean(clipped).exp()
        notes = clip_notes(sign * branch.log, sign * bounded, advantage)
        return -batch.per_decision(batch.row_mean(advantage) * ratio), notes
