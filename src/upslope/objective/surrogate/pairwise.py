"""Losses over all pairs of a group's answers, by how much more one earned than the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.ratio.granularity import LOG_LIMIT
from upslope.objective.surrogate.clip import advantage_of
from upslope.objective.surrogate.preference import answer_score
from upslope.types import Batch


@dataclass(frozen=True)
class PairwiseClip(Surrogate):
    r"""The pairwise policy gradient with a clip (P3O); :math:`\rho_i` is the ratio of the whole answer, :math:`d = A_i - A_j`.

    .. math::  \text{apart:}\quad L_i = -\min\big(w\rho_i,\ w\,\mathrm{clip}(\rho_i, 1-\epsilon, 1+\epsilon)\big),
                \quad w = sg\Big[\operatorname*{mean}_{j \ne i}\, d\,\rho_j\Big]

    .. math::  \text{joint:}\quad L_i = -\tfrac12 \operatorname*{mean}_{j \ne i}
                \min\big(sg[d\,\rho_i\rho_j]\log q,\ d\,\mathrm{clip}(\log q, -\epsilon, \epsilon)\big), \quad q = \rho_i / \rho_j

    With two answers these are the paper's; with more, all pairs of a group are averaged. Where the policy has not moved both have
    the gradient of RLOO. What is added to all rewards of a group changes nothing.

    Fields:
        epsilon: width of the trust region of a whole answer, whatever its length. Wider learns faster and strays further.
        joint: clip the ratio of the two answers' ratios (V2) rather than each (V1).
    """

    scope = "group"
    silent_without_advantage = False
    ranges: ClassVar = {"epsilon": "[0, inf)"}

    epsilon: float = 0.2
    joint: bool = False

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        log = answer_score(batch, branches, "sum").clamp(-LOG_LIMIT, LOG_LIMIT)
        advantage = batch.row_mean(advantage_of(batch)).detach()
        rivals = _rivals(batch)
        gap = torch.where(rivals, advantage.unsqueeze(1) - advantage, 0.0)
        gain, bounded, sign = (self._jointly if self.joint else self._apart)(log, gap, rivals)
        clipped = bounded < gain.detach()
        notes = {"clipped_high": clipped & (sign > 0), "clipped_low": clipped & (sign < 0)}
        loss = -_over_rivals(torch.minimum(gain, bounded), rivals)
        spread = {name: _over_rivals(which.to(loss.dtype), rivals).unsqueeze(1).expand_as(batch.sampled) > 0
                  for name, which in notes.items()}  # fmt: skip
        return batch.per_decision(loss), spread

    def _apart(self, log: Tensor, gap: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """V1: what each row gains, within bounds and without; the same beside each of its rivals ``[N, N]``."""
        ratio = log.exp()
        weight = _over_rivals(gap * ratio.detach(), rivals).unsqueeze(1)
        free, bounded = weight * ratio.unsqueeze(1), weight * ratio.clamp(1 - self.epsilon, 1 + self.epsilon).unsqueeze(1)
        return tuple(each.expand_as(gap) for each in (free, bounded, weight))  # type: ignore[return-value]

    def _jointly(self, log: Tensor, gap: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """V2: what each pair gains for one of its rows ``[N, N]``."""
        apart = log.unsqueeze(1) - log
        both = (log.unsqueeze(1) + log).detach().clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        return gap * both * apart / 2, gap * apart.clamp(-self.epsilon, self.epsilon) / 2, gap


@dataclass(frozen=True)
class ContrastiveSquare(Surrogate):
    r"""Differences of log-ratios are drawn to differences of reward over beta, in every pair of a group (CoPG).

    .. math::  L = \operatorname*{mean}_{i<j} \frac{1}{2\beta}\big(A_i - A_j - \beta (s_i - s_j)\big)^2
                 = \frac{1}{\beta}\,\mathrm{var}_i\,(A_i - \beta s_i)

    It is zero where the policy is the regularized optimum :math:`\pi_{ref}\,e^{R/\beta}`, whoever wrote the answers. The gradient
    is twice that of RLOO on the regularized reward.

    Fields:
        beta: larger keeps the policy nearer to the reference. At 0 the square is gone and what is left has the same gradient,
            :math:`-\operatorname*{mean}_{i<j}\,(A_i - A_j)(s_i - s_j)`.
    """

    scope = "group"
    silent_without_advantage = False
    ranges: ClassVar = {"beta": "[0, inf)"}

    beta: float = 0.1

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("reference",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        score, reward = answer_score(batch, branches, "sum"), batch.row_mean(advantage_of(batch)).detach()
        index, groups = batch.group_index()
        there = (batch.lengths() > 0).to(score.dtype)

        def total(value: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=value.dtype, device=value.device).index_add(0, index, value * there)

        size = total(there)

        def centred(value: Tensor) -> Tensor:
            return value - (total(value) / size.clamp_min(1))[index]

        if self.beta:
            loss = total(centred(reward - self.beta * score).square()) / self.beta
        else:
            loss = -2 * total(centred(reward) * centred(score))
        return batch.per_decision((loss / (size - 1).clamp_min(1))[index]), {}


def _rivals(batch: Batch) -> Tensor:
    """Whether two rows are different answers of one group ``[N, N]``; rows without decisions are nobody's rival."""
    there = batch.lengths() > 0
    same = (batch.group.unsqueeze(1) == batch.group) & there.unsqueeze(1) & there
    return same & ~torch.eye(batch.rows, dtype=torch.bool, device=same.device)


def _over_rivals(value: Tensor, rivals: Tensor) -> Tensor:
    """Mean of each row over its rivals ``[N]``; zero where it has none."""
    return torch.where(rivals, value, 0.0).sum(1) / rivals.sum(1).clamp_min(1)
