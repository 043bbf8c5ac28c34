"""A trust region and a step size for every token, by its entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, check_region, pessimistic
from upslope.types import Batch

Interpolation = Literal["linear", "nearest"]
"""Where a quantile falls between two values: a point between them, or the nearest of the two."""


@dataclass(frozen=True)
class EntropyAdaptiveClip(Surrogate):
    r"""PPO's clip with bounds and advantages that follow each token's entropy score :math:`\hat h \in [-1, 1]` (HAPO).

    .. math::
        low_t = low\,(1 - widen\,\hat h)\ \ (\hat h \le 0), \qquad high_t = high\,(1 + widen\,\hat h)\ \ (\hat h > 0), \qquad
        A_t = A\,(1 + redistribute\,\hat h)

    Confident tokens may be pushed down further, uncertain ones up further. The advantage is rescaled for uncertain tokens that
    have left the band :math:`(1 - low/2,\ 1 + high/2)` and for confident ones still inside it; the others keep theirs.

    The score is the logarithm of the entropy against the update's ``quantile``, in units of its root mean square, each side
    divided by its own extreme.

    Fields:
        low, high: the trust region of a token with score zero.
        widen: how much the score widens it; 0 is a fixed clip.
        redistribute: how much the score rescales the advantage; 0 not at all.
        quantile: share of tokens that count as confident.
        dual: where A < 0, the loss is no larger than :math:`-dual \cdot A`. Infinite: none.
        adapted_band: the band is half of the *adapted* bounds, as in the paper's code, instead of half of ``low`` and ``high``.
        unsigned: confident tokens get positive scores too, as in the paper's code, which divides them by their signed minimum.
        interpolation: the quantile that falls between two tokens: ``"linear"`` between both, or the ``"nearest"``, as in the
            paper's code.
        source: whose entropy: ``"proximal"``, the same for all updates of a step, or ``"current"``, as in the paper's code:
            measured anew for every update, at the price of a forward pass. At a step's first update the two agree.
    """

    ranges: ClassVar = {"dual": "(1, inf]"}

    low: float = 0.2
    high: float = 0.2
    widen: float = 1.0
    redistribute: float = 1.0
    quantile: float = 0.8
    dual: float = math.inf
    adapted_band: bool = False
    unsigned: bool = False
    interpolation: Interpolation = "linear"
    source: Literal["proximal", "current"] = "proximal"

    def __post_init__(self) -> None:
        check_region(self)
        if not 0 <= self.quantile <= 1:
            raise MethodError(f"EntropyAdaptiveClip.quantile is {self.quantile:g}; it lies in [0, 1].")
        if not (self.widen >= 0 and 0 <= self.redistribute <= 1):
            raise MethodError(f"EntropyAdaptiveClip has widen={self.widen:g} and redistribute={self.redistribute:g}; the first is "
                              "0 or above, the second from 0 to 1 (above, confident tokens would learn the opposite).")  # fmt: skip

    def prepare_needs(self) -> frozenset[str]:
        return frozenset({f"{self.source}.entropy"})

    def prepare(self, batch: Batch) -> Tensor:
        """The score of each token of the update ``[N, T]``."""
        view = batch.current if self.source == "current" else batch.proximal
        if view is None or view.entropy is None:
            raise MethodError(f"EntropyAdaptiveClip needs the entropy of the {self.source} policy, and this batch has none.")
        entropy = view.entropy.detach()
        score = entropy_score(entropy, (batch.sampled > 0) & entropy.isfinite(), self.quantile, self.interpolation)
        return score.abs() if self.unsigned else score

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), score = branches, batch.prepared[self]
        uncertain = score > 0
        low = self.low * torch.where(uncertain, 1.0, 1 - self.widen * score)
        high = self.high * torch.where(uncertain, 1 + self.widen * score, 1.0)
        band_low, band_high = (
            (low, high) if self.adapted_band else (torch.full_like(low, self.low), torch.full_like(high, self.high))
        )
        ratio = branch.value.detach()
        inside = (ratio > 1 - band_low / 2) & (ratio < 1 + band_high / 2)
        advantage = advantage_of(batch) * torch.where(inside ^ uncertain, 1 + self.redistribute * score, 1.0)
        free = branch.value * advantage
        bounded = torch.minimum(torch.maximum(branch.value, 1 - low), 1 + high) * advantage
        return pessimistic(free, bounded, advantage, self.dual)


def entropy_score(entropy: Tensor, on: Tensor, quantile: float, interpolation: Interpolation = "linear") -> Tensor:
    r"""Score in [-1, 1] of each decision where ``on`` is true, zero elsewhere: 0 at the quantile, ±1 at the two extremes."""
    log = entropy.clamp_min(1e-8).log()
    values = log[on].sort().values
    if not len(values):
        return torch.zeros_like(entropy)
    place: float = quantile * (len(values) - 1)
    if interpolation == "nearest":
        place = round(place)
    before = math.floor(place)
    after = min(before + 1, len(values) - 1)
    middle = values[before] + (place - before) * (values[after] - values[before])
    spread = (values - middle).square().mean().sqrt()
    if not spread > 0:
        return torch.zeros_like(entropy)
    score = torch.where(on, (log - middle) / spread, 0.0)
    top, bottom = score.max().clamp_min(1e-8), score.min().abs().clamp_min(1e-8)
    return torch.where(score > 0, score / top, score / bottom)
