"""The score function behind a mask: clipping as a choice of which decisions still learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.ratio import log_ratio
from upslope.objective.surrogate.clip import advantage_of, check_region, finite_logp
from upslope.types import Batch

Mask = Literal["none", "one-side", "two-side", "ring"]


@dataclass(frozen=True)
class MaskedLikelihood(Surrogate):
    r"""The score function on the decisions a mask lets through, with or without an importance weight (REC, MiniRL).

    .. math::  L_t = -M_t\; sg[\omega_t]\; A \log\pi_\theta(y_t)

    The ratio :math:`u` comes from the ratio slot (per token or per sequence) and never carries gradient here. With the one-sided
    mask and :math:`\omega = u` this is the gradient of PPO's clip everywhere but on the boundary itself.

    Fields:
        mask: ``"one-side"`` stops a decision that has moved where its advantage pushes (:math:`A > 0, u > 1+high` or
            :math:`A < 0, u < 1-low`); ``"two-side"`` any outside :math:`[1-low, 1+high]`; ``"ring"`` lets those inside through
            and those so far on the wrong side (below :math:`1-far\_low` with :math:`A > 0`, above :math:`1+far\_high` with
            :math:`A < 0`) that the push brings them back; ``"none"`` all.
        importance: :math:`\omega`: ``"none"`` is 1, ``"ratio"`` is :math:`u`, ``"behavior"`` is :math:`\pi_\theta/\mu` per token,
            with :math:`\mu` the policy that really sampled: it also corrects for an inference engine that differs.
        low, high: the trust region. Wider learns faster and strays further.
        far_low, far_high: where the outer parts of the ring begin; farther lets fewer decisions back in.
        cap: the largest importance weight. Lower bounds the variance and biases more; infinite is no bound.
    """

    mask: Mask = "one-side"
    importance: Literal["none", "ratio", "behavior"] = "ratio"
    low: float = 0.2
    high: float = 0.2
    far_low: float = 0.6
    far_high: float = 2.0
    cap: float = math.inf

    def __post_init__(self) -> None:
        check_region(self)
        if not (self.far_low >= self.low and self.far_high >= self.high):
            raise MethodError(f"MaskedLikelihood has far_low={self.far_low:g} and far_high={self.far_high:g}; the ring begins no "
                              f"nearer than the trust region ends, at low={self.low:g} and high={self.high:g}.")  # fmt: skip
        if not self.cap > 0:
            raise MethodError(f"MaskedLikelihood.cap is {self.cap:g}; an importance weight is bounded by something above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"behavior.logp"}) if self.importance == "behavior" else frozenset()

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        ratio = branch.value.detach()
        above, below = ratio > 1 + self.high, ratio < 1 - self.low
        stopped_high, stopped_low = self._stopped(advantage, ratio, above, below)
        through = ~(stopped_high | stopped_low)
        notes = {"clipped_high": stopped_high & (advantage != 0), "clipped_low": stopped_low & (advantage != 0)}
        weight = self._weight(batch, ratio).clamp(max=self.cap)
        return torch.where(through, -weight * advantage * finite_logp(batch), 0.0), notes

    def _stopped(self, advantage: Tensor, ratio: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        """Decisions that the mask holds back above and below the trust region."""
        if self.mask == "none":
            return torch.zeros_like(above), torch.zeros_like(below)
        if self.mask == "one-side":
            return above & (advantage > 0), below & (advantage < 0)
        if self.mask == "two-side":
            return above, below
        returning_low = (advantage >= 0) & (ratio <= 1 - self.far_low)
        returning_high = (advantage <= 0) & (ratio >= 1 + self.far_high)
        return above & ~returning_high, below & ~returning_low

    def _weight(self, batch: Batch, ratio: Tensor) -> Tensor:
        if self.importance == "ratio":
            return ratio
        if self.importance == "none":
            return torch.ones_like(ratio)
        return log_ratio(batch, "behavior").detach().exp()
