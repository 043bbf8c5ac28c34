"""Reinforcing what somebody else wrote, whose probabilities nobody knows (LUFFY, SRFT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import Unclipped, advantage_of
from upslope.types import Batch, Source


@dataclass(frozen=True)
class ShapedProbability(Surrogate):
    r"""An importance ratio whose denominator is taken as one, bent upwards where it is small (LUFFY).

    .. math::  L = -A\, f(\pi_\theta), \qquad f(p) = \frac{p}{p + \gamma}

    The gradient is :math:`-A\, \frac{\gamma p}{(p + \gamma)^2} \nabla\log\pi_\theta`: largest at :math:`p = \gamma`, so that
    unlikely tokens of a demonstration are learned, and small for those already known.

    Fields:
        gamma: smaller learns less likely tokens.
        form: ``"shaped"`` as above; ``"plain"`` is :math:`f(p) = p`, which hardly learns unlikely tokens (SRFT).
    """

    ranges: ClassVar = {"gamma": "(0, inf)"}

    gamma: float = 0.1
    form: Literal["shaped", "plain"] = "shaped"

    def takes(self, branches: tuple[str, ...]) -> bool:
        return not branches

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        assert batch.current is not None
        logp = batch.current.logp
        known = logp.isfinite()
        # What has no probability has no gradient either; a log-probability of NaN must not get through `where`.
        chance = torch.where(known, torch.where(known, logp, 0.0).exp(), 0.0)
        return -advantage_of(batch) * (chance / (chance + self.gamma) if self.form == "shaped" else chance), {}


@dataclass(frozen=True)
class BySource(Surrogate):
    """One trust region for what the policy sampled, another for demonstrations among it (``label["source"]``).

    Fields:
        own: of the samples. Without demonstrations it is all there is.
        demonstrated: of the demonstrations, whose ratio nobody knows: it is given none.
    """

    own: Surrogate = field(default_factory=Unclipped)
    demonstrated: Surrogate = field(default_factory=ShapedProbability)

    @property
    def silent_without_advantage(self) -> bool:  # type: ignore[override]
        return self.own.silent_without_advantage and self.demonstrated.silent_without_advantage

    def takes(self, branches: tuple[str, ...]) -> bool:
        return self.own.takes(branches) and self.demonstrated.takes(())

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        loss, notes = self.own(batch, branches)
        source = batch.label.get("source")
        if source is None:
            return loss, notes
        shown = (source == Source.DEMONSTRATED).unsqueeze(1)
        imitated, _ = self.demonstrated(batch, ())
        return torch.where(shown, imitated, loss), {name: note & ~shown for name, note in notes.items()}
