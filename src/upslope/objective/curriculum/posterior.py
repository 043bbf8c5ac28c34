"""Which tasks next? Those that a draw from what is known of them puts near to one half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from upslope.errors import MethodError
from upslope.objective.base import Curriculum
from upslope.types import Offer, Order, take_nearest


@dataclass(frozen=True)
class ByPosterior(Curriculum):
    r"""Thompson sampling of success rates: the tasks whose drawn rate is nearest to the target (MoPPS).

    .. math::  \tilde p_i \sim \mathrm{Beta}(\alpha_i, \beta_i), \qquad \text{the } m \text{ smallest } (\tilde p_i - p^*)^2

    A task of which little is known is drawn all over [0, 1], so it comes to be tried. No answer is sampled to find out.

    Fields:
        memory: what says how often a task was solved and failed (`BetaPosterior`).
        candidates: tasks drawn for each one taken. More chooses harder.
        mode: ``"topk"`` takes the nearest; ``"threshold"`` takes any whose drawn rate lies between ``low`` and ``high``, and what
            is missing then from outside, the nearest first.
        target: the success rate looked for. A group's rewards vary most at 1/2.
        low: lower end of the band.
        high: upper end of the band.
    """

    ranges: ClassVar = {"candidates": "[1, inf)", "target": "[0, 1]", "low": "[0, 1]", "high": "[0, 1]"}

    memory: str = "posterior"
    candidates: int = 16
    mode: Literal["topk", "threshold"] = "topk"
    target: float = 0.5
    low: float = 0.3
    high: float = 0.7

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise MethodError(f"ByPosterior has the band low={self.low:g} to high={self.high:g}; low is not above high.")

    def __call__(self, offer: Offer) -> Order:
        known = offer.recall(self.memory).double().cpu()
        if known.dim() != 2 or known.shape[1] != 2:
            raise MethodError(
                f"ByPosterior draws from the memory {self.memory!r}, which gives no pair for each task; take BetaPosterior."
            )
        successes, failures = known.unbind(-1)
        drawn = torch.from_numpy(offer.generator(self).beta(successes.numpy(), failures.numpy()))
        if self.mode == "topk":
            distance = (drawn - self.target).square()
        else:
            distance = (self.low - drawn).clamp_min(0) + (drawn - self.high).clamp_min(0)
        return take_nearest(offer, distance, {"posterior": successes / (successes + failures), "drawn": drawn})
