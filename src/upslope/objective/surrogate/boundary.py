"""A preference over many rejected answers, of which only those at the boundary count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes
from upslope.objective.functional.clusters import highest_cluster
from upslope.objective.functional.contests import Contests
from upslope.objective.surrogate.preference import PreferenceLoss, answer_score, contest_notes, log_likelihood, logistic_loss
from upslope.types import Batch


@dataclass(frozen=True)
class BoundaryPreference(PreferenceLoss):
    r"""The logistic loss against the losers at the boundary, each with a beta of its own (DynamicPO).

    .. math::  L = -\log\sigma\Big(\frac{1}{|B|} \sum_{b \in B} \beta_b\,(s_w - s_b)\Big), \qquad
               \beta_b = \beta\,\Big(1 + adapt \cdot \tanh\frac{m_1 - m_2 - offset}{|m_1| + |m_2|}\Big)

    B are the losers that the policy finds at least as likely as the winner; if there are none, those in the highest of three
    clusters of log-likelihoods. :math:`m_1 = \log\pi(y_w) - \log\pi(y_b)` says how clearly the winner leads, :math:`m_2 =
    \log\pi(y_b) - \text{mean}_E \log\pi` how far the loser stands out from the easy ones E, which are all others (B itself if
    there are none). Log-likelihoods are the policy's own, not ratios; who is in B and the betas carry no gradient. Several
    winners count by their means.

    Fields:
        beta: larger takes a small difference for a large one.
        adapt: how far betas leave ``beta``, as a share of it; 0 keeps it.
        offset: by how much :math:`m_1` must exceed :math:`m_2` for a beta above ``beta``, in nats.
        negatives: ``"boundary"`` as above, or ``"all"`` losers: then, with ``adapt`` 0, the loss of DPO with the losers' mean.
    """

    ranges: ClassVar = {"beta": "(0, inf)", "adapt": "[0, 1)"}

    beta: float = 1.0
    adapt: float = 0.5
    offset: float = 2.0
    negatives: Literal["boundary", "all"] = "boundary"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, contests, logp = answer_score(batch, branches, "sum"), Contests.of(batch), log_likelihood(batch)
        boundary = self.boundary(logp, contests) if self.negatives == "boundary" else contests.lost
        against = contests._replace(lost=boundary)  # the same contests, with fewer losers
        factor = self.factors(logp, contests, boundary)
        # The winner's score stands before the mean of the factors: with factors of 1 nothing is rounded otherwise than in DPO.
        difference = against.losers(factor) * contests.winners(score) - against.losers(factor * score)
        loss = contests.per_decision(logistic_loss(self.beta * difference, contests.sure), batch)
        notes = contest_notes(batch, contests, contests.winners(score) - against.losers(score))
        return loss, notes | {
            "boundary": torch.where(contests.lost, boundary.to(logp.dtype), torch.nan),
            "beta": torch.where(boundary, self.beta * factor, torch.nan),
        }

    def boundary(self, logp: Tensor, contests: Contests) -> Tensor:
        """The losers ``[N]`` that count."""
        above = contests.lost & (logp >= contests.winners(logp)[contests.contest])
        none_above = ~contests.any_row(above)[contests.contest]
        highest = highest_cluster(logp, contests.lost & none_above, contests.contest, contests.groups)
        return above | highest

    def factors(self, logp: Tensor, contests: Contests, boundary: Tensor) -> Tensor:
        """What beta is multiplied with for each loser of the boundary ``[N]``; 1 elsewhere."""
        easy = contests.lost & ~boundary
        easy = torch.where(contests.any_row(easy)[contests.contest], easy, boundary)
        winner, rest = contests.winners(logp), contests._replace(lost=easy).losers(logp)
        lead, stands_out = winner[contests.contest] - logp, logp - rest[contests.contest]
        size = lead.abs() + stands_out.abs()
        turned = ((lead - stands_out - self.offset) / torch.where(size > 0, size, 1.0)).tanh()
        return torch.where(boundary & (size > 0), 1 + self.adapt * turned, 1.0)
