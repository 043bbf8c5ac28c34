"""Risk of bundles of questions, against quantiles that follow the policy (RiskPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage, State, Stateful
from upslope.types import Batch, Metrics

FLAT = 1e-3
"""A spread below this says nothing about its questions and divides by one, as in the released code."""


class Papers(NamedTuple):
    """How the rows of a batch are dealt to papers: the j-th paper of a bundle has one answer to each of its questions."""

    bundle: Tensor
    """``[N]``: the bundle of each row's question."""
    number: Tensor
    """``[N]``: the paper of each row within its bundle."""
    used: Tensor
    """``[N]``: whether that paper is complete; a bundle has as many as its smallest group."""
    score: Tensor
    """``[bundles, papers]``: sum of rewards, NaN where there is no paper."""
    questions: Tensor
    """``[bundles]``: how many questions each has."""

    def rows(self, per_paper: Tensor) -> Tensor:
        """A value per paper given to its rows."""
        return per_paper[self.bundle, self.number]

    def total(self, per_row: Tensor) -> Tensor:
        """A value per row summed over each paper, ``[bundles, papers]``."""
        bundles, width = self.score.shape
        flat = torch.zeros(bundles * width, dtype=per_row.dtype, device=per_row.device)
        kept = torch.where(self.used, per_row, 0.0)
        return flat.index_add_(0, self.bundle * width + self.number, kept).view(bundles, width)


@dataclass(frozen=True)
class BundleRisk(Advantage, Stateful):
    r"""A mixed value at risk of bundle scores, shared out to the answers of the bundle (RiskPO).

    .. math::
        g = \frac{(S - q_{lo})_+ - (S - q_{hi})_+ + q_{lo} - q_{hi}}{hi - lo},\qquad c = -\frac{(q_{lo} - S)_+}{lo},\qquad
        A = \frac{w\,c + g}{(1 + w)\,(\mathrm{std}\,S + \epsilon)}

    S is the sum of rewards of a *paper*: one answer to each question of a bundle. A score far below the lower quantile counts
    :math:`w/lo` per point, one between the quantiles :math:`1/(hi-lo)`, one above the upper quantile nothing more: hard questions
    weigh more, solved ones less. Bundles and papers are drawn anew each step. The quantiles are those of the bundle itself in
    the first step, of all papers after it, and from then on move by :math:`q \leftarrow q + rate\,(level - \overline{1[S < q]})`.

    Fields:
        low, high: levels of the two quantiles. A lower ``high`` ignores more of what already goes well.
        weight: w, how much more the lower tail counts. 0 is the range between the quantiles alone.
        tail: ``"upper"`` replaces c by :math:`(S - q_{hi})_+/(1-hi)`: seeks risk, and collapses onto what already goes well.
        questions: in a bundle. More make binary rewards finer and blame less exact. A bundle that is short of questions has its
            score scaled up to full size.
        quantiles: ``"track"`` as above; ``"batch"`` those of the bundle at hand; ``"mix"`` the mean of both.
        rate: of the tracker. Larger follows a changing policy faster and wobbles more.
        credit: ``"std"`` divides by the spread of the answer's own group; ``"uniform"`` gives every answer of a paper the same;
            ``"sum-mean"`` shares A out in proportion to reward minus the group's mean.
        shifted: False leaves out :math:`q_{lo} - q_{hi}`, so that A is positive between the quantiles.
        normalise: False does not divide by the bundle's spread.
        eps: added to both spreads.
    """

    ranges: ClassVar = {"rate": "[0, 1]", "eps": "[0, inf)"}

    low: float = 0.2
    high: float = 0.9
    weight: float = 1.5
    tail: Literal["lower", "upper"] = "lower"
    questions: int = 5
    quantiles: Literal["track", "batch", "mix"] = "track"
    rate: float = 0.1
    credit: Literal["std", "uniform", "sum-mean"] = "std"
    shifted: bool = True
    normalise: bool = True
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise MethodError(f"BundleRisk has low={self.low:g} and high={self.high:g}; they are levels in [0, 1], low below high.")
        if self.weight < 0 or self.questions < 1:
            raise MethodError(
                f"BundleRisk has weight={self.weight:g} and questions={self.questions}; weight is 0 or more, questions 1 or more."
            )
        if self.weight and (self.low == 0 if self.tail == "lower" else self.high == 1):
            raise MethodError(
                f"BundleRisk weighs the {self.tail} tail by {self.weight:g}, and with low={self.low:g}, high={self.high:g} there "
                f"is none; set weight to 0."
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "key"})

    # -- what is remembered --------------------------------------------------------------------------------------------

    def init(self) -> State:
        return {"steps": 0, "low": 0.0, "high": 0.0}

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        found = self.papers(batch).score
        scores = found[~found.isnan()]
        moved: State = {"steps": state["steps"] + 1}
        for name, level in (("low", self.low), ("high", self.high)):
            below = float((scores < state[name]).double().mean())
            first = float(scores.quantile(level))
            moved[name] = state[name] + self.rate * (level - below) if state["steps"] else first
        return moved

    # -- the advantage -------------------------------------------------------------------------------------------------

    def __call__(self, batch: Batch) -> Tensor:
        papers = self.papers(batch)
        risk = self.risk(papers.score, *self._quantiles(batch.state[self], papers.score))
        if self.normalise:
            risk = risk / (_spread(papers.score) + self.eps)
        return batch.per_decision(torch.where(papers.used, self._credit(batch, papers, risk), 0.0))

    def papers(self, batch: Batch) -> Papers:
        """The step's bundles and papers, the same whatever the order of rows."""
        draw = batch.uniform(self)[:, 0]
        index, groups = batch.group_index()
        size = torch.bincount(index, minlength=groups)
        order = draw.argsort(stable=True)
        order = order[index[order].argsort(stable=True)]
        number = torch.empty_like(index)
        number[order] = torch.arange(len(index), device=index.device) - (size.cumsum(0) - size)[index[order]]
        smallest = torch.full((groups,), torch.inf, dtype=draw.dtype, device=draw.device)
        bundle = smallest.scatter_reduce_(0, index, draw, "amin").argsort().argsort() // self.questions
        questions = torch.bincount(bundle)
        count = torch.full_like(questions, len(index)).scatter_reduce_(0, bundle, size, "amin")
        used = number < count[bundle[index]]
        width = int(size.max())
        there = torch.arange(width, device=index.device) < count.unsqueeze(1)
        papers = Papers(bundle[index], number, used, torch.zeros(len(questions), width, device=index.device), questions)
        scale = (self.questions / questions.to(batch.reward.dtype)).unsqueeze(1)
        return papers._replace(score=torch.where(there, papers.total(batch.reward) * scale, torch.nan))

    def risk(self, score: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
        """A for scores, before any spread divides it."""
        between = (score - low).clamp_min(0) - (score - high).clamp_min(0)
        if self.shifted:
            between = between + low - high
        between = between / (self.high - self.low)
        if not self.weight:
            return between
        tail = -(low - score).clamp_min(0) / self.low if self.tail == "lower" else (score - high).clamp_min(0) / (1 - self.high)
        return (self.weight * tail + between) / (1 + self.weight)

    def _quantiles(self, state: State, score: Tensor) -> list[Tensor | float]:
        own = [score.nanquantile(level, dim=1, keepdim=True) for level in (self.low, self.high)]
        if self.quantiles == "batch" or not state["steps"]:
            return list(own)
        tracked = [state["low"], state["high"]]
        return tracked if self.quantiles == "track" else [(a + b) / 2 for a, b in zip(tracked, own, strict=True)]

    def _credit(self, batch: Batch, papers: Papers, risk: Tensor) -> Tensor:
        stats, shared = batch.group_stats(batch.reward), papers.rows(risk)
        if self.credit == "uniform":
            return shared
        if self.credit == "std":
            return shared / (torch.where(stats.std > FLAT, stats.std, 1.0) + self.eps)
        lead = batch.reward - stats.mean
        total = papers.rows(papers.total(lead))
        balanced = total.abs() <= 1e-6
        even = 1 / papers.questions[papers.bundle].to(lead.dtype)
        return shared * torch.where(balanced, even, lead / torch.where(balanced, 1.0, total))


def _spread(score: Tensor) -> Tensor:
    """Unbiased spread of each bundle's papers ``[bundles, 1]``; one that is flat counts as 1."""
    count = (~score.isnan()).sum(1, keepdim=True)
    deviation = (score - score.nanmean(1, keepdim=True)) ** 2
    std = (deviation.nansum(1, keepdim=True) / (count - 1).clamp_min(1)).sqrt()
    return torch.where(std > FLAT, std, 1.0)
