"""Learning from revised answers: four comparisons of one problem, with weights by token, and an anchor (OPA-DPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.functional.versions import GENERATED, REVISED, REVISED_HIDDEN, TRUTH, TRUTH_HIDDEN
from upslope.objective.surrogate.preference import log_likelihood
from upslope.types import Batch


class Comparison(NamedTuple):
    """Two versions of an answer, of which the first should be likelier."""

    better: int
    worse: int
    weight: Tensor
    """Of each token's log-ratio ``[N, T]``."""
    scale: float


class Side(NamedTuple):
    """One version in each group: its tokens' log-ratios, and which tokens it has, ``[G, T]`` each."""

    log: Tensor
    there: Tensor


@dataclass(frozen=True)
class RevisionPreference(Surrogate):
    r"""DPO between a true, a revised and a generated answer, and between evidence seen and hidden, with an anchor (OPA-DPO).

    .. math::  L = D(y_{true}, y_{gen}) + D_s(y_{rev}, y_{gen})
                 + hidden\,\big[D(y_{true}|x,\ y_{true}|\tilde x) + D_v(y_{rev}|x,\ y_{rev}|\tilde x)\big] + anchor \cdot A

    .. math::  D_w(y, y') = -\log\sigma\Big(\beta \sum_t w_t r_t(y) - \beta \sum_t w_t r_t(y')\Big), \qquad
               A = \sum_{comparisons} -\log\sigma\Big(\beta \sum_t r_t(y) - \delta\Big)

    where :math:`r_t` is a token's log-ratio to the reference and A is over the better side y of each comparison. A comparison
    of which a side is missing is left out. The group's loss stands on all its decisions.

    Fields:
        beta: larger takes a small difference for a large one.
        severities: weights s of tokens in pieces of severity 1 (worst) to 4 (right).
        perceptual: weight v of tokens in pieces that misread the evidence; others have 1.
        hidden: scale of the two comparisons with hidden evidence. 0 leaves them out.
        anchor: scale of the term that keeps the better sides likelier than they were. 0 is none.
        delta: what the anchor asks them to have gained, times beta.
        form: ``"answer"`` as above. ``"token"`` is the released code: the logistic at each position of the two answers, the k-th
            token of one against the k-th of the other, averaged over positions; and the anchor pushes revised answers down.
    """

    scope = "group"
    silent_without_advantage = False
    ranges: ClassVar = {"beta": "(0, inf)", "perceptual": "[0, inf)", "hidden": "[0, inf)", "anchor": "[0, inf)"}

    beta: float = 0.1
    severities: tuple[float, ...] = (2.5, 2.0, 1.5, 1.0)
    perceptual: float = 3.0
    hidden: float = 0.2
    anchor: float = 1.0
    delta: float = 0.0
    form: Literal["answer", "token"] = "answer"

    def __post_init__(self) -> None:
        if not isinstance(self.severities, tuple) or len(self.severities) != 4:
            raise MethodError(f"RevisionPreference.severities is {self.severities!r}; it holds four weights, for severity 1 to 4.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "label.version", "segment.severity", "segment.perceptual"})

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("reference",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,) = branches
        index, groups = batch.group_index()
        log = branch.log * batch.sampled
        loss = torch.zeros(groups, dtype=log.dtype, device=log.device)
        margins: list[Tensor] = []
        for each in self._comparisons(batch, log):
            better, worse = (_side(batch, each.weight * log, version) for version in (each.better, each.worse))
            plain = _side(batch, log, each.better)
            decided = better.there.any(1) & worse.there.any(1)
            sign = -1.0 if self.form == "token" and each.better == REVISED else 1.0
            compared = self._mean_loss(self.beta * (better.log - worse.log), better.there | worse.there)
            anchored = self._mean_loss(sign * (self.beta * plain.log), plain.there, sign * self.delta) if self.anchor else 0.0
            loss = loss + torch.where(decided, each.scale * compared + self.anchor * anchored, 0.0)
            margins.append(torch.where(decided, (better.log - worse.log).sum(1).detach(), torch.nan))
        return batch.per_decision(loss[index]), self._notes(batch, margins)

    def _comparisons(self, batch: Batch, log: Tensor) -> list[Comparison]:
        ones = torch.ones_like(log)
        severities = torch.tensor(self.severities, dtype=log.dtype, device=log.device)
        severe = severities[batch.segment["severity"].clamp(1, 4) - 1]
        seen = torch.where(batch.segment["perceptual"] > 0, self.perceptual, ones)
        found = [Comparison(TRUTH, GENERATED, ones, 1.0), Comparison(REVISED, GENERATED, severe, 1.0)]
        if self.hidden:
            found.append(Comparison(TRUTH, TRUTH_HIDDEN, ones, self.hidden))
            found.append(Comparison(REVISED, REVISED_HIDDEN, seen, self.hidden))
        return found

    def _mean_loss(self, logit: Tensor, there: Tensor, margin: float = 0.0) -> Tensor:
        """The logistic loss of each group ``[G]``: of the sum over tokens, or the mean of that of each position."""
        if self.form == "answer":
            return -logsigmoid(logit.sum(1) - margin)
        return torch.where(there, -logsigmoid(logit - margin), 0.0).sum(1) / there.sum(1).clamp_min(1)

    @staticmethod
    def _notes(batch: Batch, margins: list[Tensor]) -> Notes:
        """The margin of each comparison with what was generated, and the log-likelihood of both sides."""
        index, version, logp = batch.group_index()[0], batch.label["version"], log_likelihood(batch)

        def on(kind: int, value: Tensor) -> Tensor:
            return torch.where(version == kind, value, torch.nan)

        told = {
            "margin": on(TRUTH, margins[0][index]),
            "preferred": on(TRUTH, torch.where(margins[0].isnan(), torch.nan, (margins[0] > 0).to(logp.dtype))[index]),
            "margin_revised": on(REVISED, margins[1][index]),
            "logp_chosen": on(TRUTH, logp),
            "logp_rejected": on(GENERATED, logp),
        }
        return told | ({"margin_evidence": on(TRUTH_HIDDEN, margins[2][index])} if len(margins) > 2 else {})


def _side(batch: Batch, log: Tensor, version: int) -> Side:
    """One version in each group; of several rows, by their mean."""
    index, groups = batch.group_index()
    mine = ((batch.label["version"] == version) & (batch.lengths() > 0)).to(log.dtype)
    count = torch.zeros(groups, dtype=log.dtype, device=log.device).index_add(0, index, mine)
    blank = torch.zeros(groups, log.shape[1], dtype=log.dtype, device=log.device)
    total = blank.index_add(0, index, torch.where(mine.unsqueeze(1) > 0, log, 0.0))
    there = blank.index_add(0, index, mine.unsqueeze(1) * batch.sampled.to(log.dtype)) > 0
    return Side(total / count.clamp_min(1).unsqueeze(1), there)
