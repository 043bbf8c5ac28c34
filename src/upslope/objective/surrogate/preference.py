"""Losses of preferences: the rows of a group are a contest, its winners have advantage above zero, its losers below.

What is compared is a score of each answer, the ratio's log summed (or averaged) over its tokens. Each contest's loss stands on all
its decisions, so that a mean over groups (`GroupMean`) gives it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.functional.contests import Contests
from upslope.objective.surrogate.clip import advantage_of, finite_logp
from upslope.types import Batch

Unit = Literal["sum", "mean"]
"""What an answer's score is: the sum over its tokens, or their mean."""


def answer_score(batch: Batch, branches: tuple[Branch, ...], unit: Unit) -> Tensor:
    """The score of each answer ``[N]``."""
    (branch,) = branches
    return (branch.log * batch.sampled).sum(1) if unit == "sum" else batch.row_mean(branch.log)


def log_likelihood(batch: Batch) -> Tensor:
    """The current policy's log-likelihood of each answer ``[N]``, to be looked at: without gradient."""
    return (finite_logp(batch).detach() * batch.sampled).sum(1)


def contest_notes(batch: Batch, contests: Contests, margin: Tensor) -> Notes:
    """What every preference loss shows: the margin, whether it is on the right side, and the log-likelihood of both sides."""
    logp = log_likelihood(batch)
    return {
        "margin": contests.per_winner(margin.detach()),
        "preferred": contests.per_winner((margin.detach() > 0).to(margin.dtype)),
        "logp_chosen": torch.where(contests.won, logp, torch.nan),
        "logp_rejected": torch.where(contests.lost, logp, torch.nan),
    }


def logistic_loss(logit: Tensor, sure: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The loss of each contest ``[G]`` that is won with chance (1 + sure)/2, less so by label smoothing."""
    chance = (1 + sure) / 2
    chance = chance * (1 - label_smoothing) + (1 - chance) * label_smoothing
    return -chance * logsigmoid(logit) - (1 - chance) * logsigmoid(-logit)


class PreferenceLoss(Surrogate):
    """A loss of whole contests."""

    scope = "group"

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("reference",)


@dataclass(frozen=True)
class SigmoidPreference(PreferenceLoss):
    r"""The logistic loss of the difference between winner and loser (DPO, SimPO).

    .. math::  L = -\log\sigma(\beta\,(s_w - s_l) - margin)

    A contest whose winner has an advantage c below 1 is won with chance (1 + c)/2, and the loss is the expected one:
    :math:`-p\log\sigma(z) - (1-p)\log\sigma(-z)`. Label smoothing makes every win less sure in the same way.

    Fields:
        beta: larger takes a small difference for a large one, so that learning stops sooner and the policy stays nearer.
        label_smoothing: chance that a verdict is wrong. Above 0 the loss grows again where a margin is too large.
        unit: an answer's score: the ``"sum"`` over its tokens, or their ``"mean"``, which long answers do not profit from (SimPO).
        margin: what the difference must exceed, after the multiplication with beta (SimPO's gamma).
        losers: several losers count by the ``"mean"`` of their scores, or by ``"softmax"``,
            :math:`z = -\log\sum_k e^{\beta (s_k - s_w)}`, where the likeliest counts most (S-DPO).
    """

    ranges: ClassVar = {"beta": "(0, inf)", "label_smoothing": "[0, 0.5]"}

    beta: float = 0.1
    label_smoothing: float = 0.0
    unit: Unit = "sum"
    margin: float = 0.0
    losers: Literal["mean", "softmax"] = "mean"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, contests = answer_score(batch, branches, self.unit), Contests.of(batch)
        winner = contests.winners(score)
        if self.losers == "mean":
            difference = winner - contests.losers(score)
        else:
            difference = winner - contests.losers_log_sum_exp(self.beta * score) / self.beta
        loss = logistic_loss(self.beta * difference - self.margin, contests.sure, self.label_smoothing)
        return contests.per_decision(loss, batch), contest_notes(batch, contests, difference)


@dataclass(frozen=True)
class SquaredPreference(PreferenceLoss):
    r"""The difference between winner and loser is drawn to a fixed size, not beyond (IPO, INPO).

    .. math::  L = \Big(s_w - s_l - \frac{1}{2\tau}\Big)^2

    An advantage c below 1 says that the winner wins with chance (1 + c)/2; the target is then :math:`c/2\tau`, which has the
    gradient of the expected loss.

    Fields:
        tau: larger asks for a smaller difference: the policy stays nearer to what it is compared with.
        unit: an answer's score: the ``"sum"`` over its tokens as in the papers, or their ``"mean"`` as in many trainers.
    """

    ranges: ClassVar = {"tau": "(0, inf)"}

    tau: float = 0.1
    unit: Unit = "sum"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, contests = answer_score(batch, branches, self.unit), Contests.of(batch)
        difference = contests.winners(score) - contests.losers(score)
        loss = (difference - contests.sure / (2 * self.tau)).square()
        return contests.per_decision(loss, batch), contest_notes(batch, contests, difference)


@dataclass(frozen=True)
class SquaredTarget(Surrogate):
    r"""Each answer's score is drawn to what its win rate deserves, whatever becomes of its rival (SPPO).

    .. math::  L = \big(s - \eta A\big)^2, \qquad A = \hat P(y \succ \pi_t) - \tfrac12

    An answer that wins half of its contests is drawn back to the reference.

    Fields:
        eta: larger steps away from the reference. 1,000 is the paper's for answers of hundreds of tokens.
        unit: an answer's score: the ``"sum"`` over its tokens, or their ``"mean"``.
    """

    scope = "sequence"
    silent_without_advantage = False
    ranges: ClassVar = {"eta": "[0, inf)"}

    eta: float = 1000.0
    unit: Unit = "sum"

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("reference",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, advantage = answer_score(batch, branches, self.unit), batch.row_mean(advantage_of(batch)).detach()
        logp = log_likelihood(batch)
        there, none = batch.lengths() > 0, torch.full_like(score, torch.nan)
        notes = {
            "logp_chosen": torch.where(there & (advantage > 0), logp, none),
            "logp_rejected": torch.where(there & (advantage < 0), logp, none),
        }
        return batch.per_decision((score - self.eta * advantage).square()), notes


@dataclass(frozen=True)
class UnpairedSigmoid(Surrogate):
    r"""Wanted and unwanted answers, each compared with how far the policy has moved in general (KTO).

    .. math::  L = w_D\,\big(1 - \sigma(\beta (s - z_0))\big) \text{ where } A > 0, \qquad
               w_U\,\big(1 - \sigma(\beta (z_0 - s))\big) \text{ where } A < 0

    :math:`z_0 = \max(0, \text{mean of } s)` is taken over rows of advantage zero, which answer other prompts than they were written
    for; it carries no gradient. Without such rows it is 0.

    Fields:
        beta: larger takes a small difference for a large one.
        desirable, undesirable: weights of the two kinds. With unequal numbers keep weight times number in a ratio of 1 to 4/3.
        threshold: the reference from which :math:`z_0` is measured: the one of the ratio.
    """

    scope = "sequence"
    ranges: ClassVar = {"beta": "(0, inf)", "desirable": "[0, inf)", "undesirable": "[0, inf)"}

    beta: float = 0.1
    desirable: float = 1.0
    undesirable: float = 1.0
    threshold: str = "start"

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("reference",)

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.threshold}.logp"})

    def prepare_needs(self) -> frozenset[str]:
        return frozenset({"current.logp"})

    def prepare(self, batch: Batch) -> Tensor:
        """The threshold on every row ``[N]``."""
        if self.threshold not in batch.reference:
            found = ", ".join(batch.reference) or "no reference"
            raise MethodError(f"UnpairedSigmoid measures its threshold from {self.threshold!r}; this batch has {found}.")
        moved = finite_logp(batch) - batch.reference[self.threshold].logp
        elsewhere = (batch.lengths() > 0) & (batch.row_mean(advantage_of(batch)) == 0)
        scores = torch.where(batch.sampled > 0, moved, 0.0).sum(1)[elsewhere]
        return torch.full_like(batch.reward, float(scores.mean().clamp_min(0)) if len(scores) else 0.0)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, advantage = answer_score(batch, branches, "sum"), batch.row_mean(advantage_of(batch)).detach()
        beyond = self.beta * (score - batch.prepared[self])
        wanted, unwanted = advantage > 0, advantage < 0
        loss = torch.where(wanted, self.desirable * (-beyond).sigmoid(), 0.0)
        loss = torch.where(unwanted, self.undesirable * beyond.sigmoid(), loss)
        logp = log_likelihood(batch)
        notes = {
            "threshold": torch.where(wanted | unwanted, batch.prepared[self], torch.nan),
            "logp_chosen": torch.where(wanted, logp, torch.nan),
            "logp_rejected": torch.where(unwanted, logp, torch.nan),
        }
        return batch.per_decision(loss), notes
