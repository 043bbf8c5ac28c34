"""Who is rejected, so that preferences say by what a target differs from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Advantage
from upslope.objective.functional.contests import first_of_group, group_extreme
from upslope.objective.functional.information import information_entropy
from upslope.types import Batch, Metrics

NEVER = 1e-12
"""What keeps the logarithm of a random number finite."""


@dataclass(frozen=True)
class InformationPair(Advantage):
    r"""Two answers of each group, of which the worse is rejected as often as the target's differential information asks for (DID).

    With answers drawn from :math:`\mu` and rejected ones from :math:`\pi_l(y) \propto \mu(y)\,(\pi_{start}(y)/\pi_*(y))^\beta`,
    DPO's minimiser is the target :math:`\pi_*`. For a target of rewards, :math:`\pi_* \propto
    \pi_{start}\,e^{R/(\beta\,scale)}`, that is :math:`\pi_l \propto \mu\,e^{-R/scale}`: of two answers the first is the
    rejected one with chance :math:`\sigma((R_2 - R_1)/scale)`, whoever drew them.

    The policy's samples are reported as ``information_entropy``: how spread out is what it says beyond its start
    (`information_entropy`), over the answers of a problem that have the same length.

    Fields:
        scale: of the reward. A smaller one rejects the worse answer more surely and has a sharper target; 0 always rejects it.
        rejected: ``"worst"`` takes the answers that earned most and least; the better one wins with the chance above, as an
            expectation. ``"drawn"`` draws the rejected answer of the group by :math:`e^{-R/scale}` and any other as
            chosen: the same minimiser, with far more noise, also in groups in which all earned the same.
        entropy: report the entropy, which needs the start's log-likelihoods of all answers, not only of the two.
    """

    ranges: ClassVar = {"scale": "[0, inf)"}

    scale: float = 0.5
    rejected: Literal["worst", "drawn"] = "worst"
    entropy: bool = True

    def needs(self) -> frozenset[str]:
        drawn = {"key"} if self.rejected == "drawn" else set()
        return frozenset({"group", *drawn, *({"reference.start.logp"} if self.entropy else ())})

    def __call__(self, batch: Batch) -> Tensor:
        there = batch.lengths() > 0
        return batch.per_decision(self._drawn(batch, there) if self.rejected == "drawn" else self._best_and_worst(batch, there))

    def _best_and_worst(self, batch: Batch, there: Tensor) -> Tensor:
        reward = batch.reward.to(batch.sampled.dtype)
        best, worst = first_of_group(batch, reward, there, "amax"), first_of_group(batch, reward, there, "amin")
        apart = group_extreme(batch, reward, there, "amax") - group_extreme(batch, reward, there, "amin")
        sure = (apart / (2 * self.scale)).tanh() if self.scale else apart.sign()  # 2 σ(x) - 1 = tanh(x/2)
        return torch.where(best ^ worst, torch.where(best, sure, -sure), 0.0)

    def _drawn(self, batch: Batch, there: Tensor) -> Tensor:
        draw = batch.uniform(self)
        gumbel = -(
            -draw[:, 0].clamp(NEVER, 1 - NEVER).log()
        ).log()  # the largest of log-weights with such noise is a draw by weight
        order = gumbel - batch.reward / self.scale if self.scale else -batch.reward
        lost = first_of_group(batch, order.to(draw.dtype), there, "amax")
        won = first_of_group(batch, draw[:, -1], there & ~lost, "amax")
        return won.to(batch.sampled.dtype) - lost.to(batch.sampled.dtype)

    def metrics(self, rows: Batch) -> Metrics:
        """``information_entropy``, over sets of at least two answers."""
        there = rows.lengths() > 0
        if not self.entropy or not bool(there.any()):
            return {}
        alike = torch.stack([rows.group_index()[0], rows.lengths().long()])[:, there]
        sets, index, size = alike.unique(dim=1, return_inverse=True, return_counts=True)
        logp, start = ((view.logp * rows.sampled).sum(1)[there].double() for view in (rows.behavior, rows.reference["start"]))
        found = information_entropy(logp, start, index, sets.shape[1])
        known = (size > 1) & found.isfinite()
        return {"information_entropy": float((found * size)[known].sum() / size[known].sum())} if bool(known.any()) else {}
