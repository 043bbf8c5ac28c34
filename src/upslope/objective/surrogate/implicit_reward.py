"""Imitation that fades as the policy leaves its start: supervised objectives of f-divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.ratio import LOG_LIMIT
from upslope.objective.surrogate.clip import advantage_of, finite_logp
from upslope.types import Batch, Scope

Divergence = Literal["total-variation", "pearson", "hellinger", "jensen-shannon", "reverse-kl", "forward-kl"]
DOMAIN = {"hellinger": -1.0, "jensen-shannon": -math.log(2), "forward-kl": 0.0}
r"""Above what each :math:`\phi` is defined; the others are everywhere."""


class Phi(NamedTuple):
    """Of each reward, the value and the slope of a divergence's function."""

    value: Tensor
    slope: Tensor


def phi(reward: Tensor, divergence: Divergence) -> Phi:
    r""":math:`\phi(r)` and :math:`\phi'(r)` inside the domain."""
    if divergence == "total-variation":
        return Phi(reward, torch.ones_like(reward))
    if divergence == "pearson":
        return Phi(reward - reward.square() / 4, 1 - reward / 2)
    if divergence == "hellinger":
        return Phi(reward / (1 + reward), (1 + reward) ** -2)
    if divergence == "jensen-shannon":
        fading = (-reward).exp()
        return Phi((2 - fading).log(), fading / (2 - fading))
    if divergence == "reverse-kl":
        fading = (-1 - reward).exp()
        return Phi(-fading, fading)
    return Phi(1 + reward.log(), 1 / reward)


@dataclass(frozen=True)
class ImplicitReward(Surrogate):
    r"""Supervised learning of the reward that the policy stands for, :math:`r = \beta \log(\pi_\theta / \pi_{start})`.

    .. math::  L = -\frac{A}{\beta}\,\phi(r), \qquad \nabla L = -A\,\phi'(r)\,\nabla\log\pi_\theta

    With total variation :math:`\phi(r) = r`; with pearson :math:`r - r^2/4`; with hellinger :math:`r / (1 + r)`, for
    :math:`r > -1`; with jensen-shannon :math:`\log(2 - e^{-r})`, for :math:`r > -\ln 2`; with reverse-kl
    :math:`-e^{-(1 + r)}`; with forward-kl :math:`1 + \log r`, for :math:`r > 0`.

    Total variation is `LogLikelihood` itself. The others learn less from what has become likelier than it was at the start, so the
    policy stays nearer to it; ``pearson`` unlearns what has become e² times as likely. Below its domain a :math:`\phi` goes on as a
    straight line. :math:`\beta` divides the loss, so that the gradient at the start does not depend on it.

    Fields:
        divergence: see the table. ``forward-kl`` begins outside of its domain, with :math:`1/edge` times the gradient of SFT.
        unit: what has a reward: each ``"token"``, or an answer as a whole, with the ``"mean"`` or the ``"sum"`` of log-ratios.
        beta: larger fades sooner.
        edge: how far inside its domain the straight line ends. Smaller gives more weight to what the policy has unlearned.
    """

    ranges: ClassVar = {"beta": "(0, inf)", "edge": "(0, inf)"}

    divergence: Divergence = "pearson"
    unit: Literal["token", "mean", "sum"] = "mean"
    beta: float = 1.0
    edge: float = 0.1

    def takes(self, branches: tuple[str, ...]) -> bool:
        return not branches

    def seen_at_once(self) -> Scope:
        return "decision" if self.unit == "token" or not self.needs() else "sequence"

    def needs(self) -> frozenset[str]:
        return frozenset() if self.divergence == "total-variation" else frozenset({"reference.start.logp"})

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        logp = finite_logp(batch)
        if not self.needs():
            return -advantage_of(batch) * logp, {}
        reward, border = self.reward(batch), self.border()
        found = self.extended(reward)
        # The value is the loss's; the gradient, the slope times that of the log-likelihood, is written out: of a mean over an
        # answer autograd would give the same, rounded otherwise.
        loss = -advantage_of(batch) * (found.value / self.beta + found.slope * (logp - logp.detach()))
        return loss, {"outside": reward < border}

    def border(self) -> float:
        """Below it the function is a straight line."""
        return DOMAIN[self.divergence] + self.edge if self.divergence in DOMAIN else -LOG_LIMIT

    def extended(self, reward: Tensor) -> Phi:
        """The function on all numbers."""
        inside = reward.clamp(self.border(), None)
        value, slope = phi(inside, self.divergence)
        return Phi(value + slope * (reward - inside), slope)

    @torch.no_grad()
    def reward(self, batch: Batch) -> Tensor:
        """The implicit reward of each decision, or of its answer, ``[N, T]``."""
        if "start" not in batch.reference:
            found = ", ".join(batch.reference) or "no reference"
            raise MethodError(f"an implicit reward compares with 'start'; this batch has {found}.")
        log = finite_logp(batch) - batch.reference["start"].logp
        log = torch.where(log.isfinite() & (batch.sampled > 0), log, 0.0)
        if self.unit == "token":
            return self.beta * log
        whole = batch.row_mean(log) if self.unit == "mean" else log.sum(1)
        return self.beta * whole.unsqueeze(1).expand_as(log)
