"""Better together: sets of answers, scored by what they earn and how different they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.gae import GAE
from upslope.objective.base import Advantage
from upslope.types import Batch, decision_keys


@dataclass(frozen=True)
class PolychromicAdvantage(Advantage):
    r"""The advantage of the sets an answer was in, on its first decisions (Poly-PPO).

    .. math::
        f(S) = \frac1n\sum_{i \in S} R_i \cdot \frac{\#\text{answer classes in } S}{n}, \qquad
        A_i = \text{mean over the drawn } S \ni i \text{ of}\ \Big(f(S) - \frac1M\sum_{m} f(S_m)\Big)

    ``sets`` sets of ``n`` are drawn from each group without replacement. The first ``window`` decisions of a row behind the state
    its group left from get :math:`A_i`, the rest what ``base`` gives. An answer in no set gets zero there; a group of one, such as
    the answer a vine grew from, has no set and keeps ``base`` throughout. ``base`` also writes the returns.

    Fields:
        n: answers in a set. More rewards spread over more answers; a smaller group is one set. 1 has no diversity.
        sets: drawn per group. More lowers the variance; with all of a group in one set nothing is better than anything.
        window: decisions that answer for the set. 0 is ``base`` alone.
        combine: ``"product"`` pays for diversity only what is earned; ``"sum"`` pays for it even where all are wrong.
        diversity: off, a set is scored by its mean reward alone.
        baseline: ``"mean"`` as above; ``"none"`` leaves the score as it is: same direction on average, larger variance.
        base: advantages of all other decisions.
    """

    n: int = 4
    sets: int = 4
    window: int = 5
    combine: Literal["product", "sum"] = "product"
    diversity: bool = True
    baseline: Literal["mean", "none"] = "mean"
    base: Advantage = field(default_factory=lambda: GAE(gamma=1.0, lam=1.0))

    def __post_init__(self) -> None:
        if self.n < 1 or self.sets < 1 or self.window < 0:
            raise MethodError(
                f"PolychromicAdvantage has n={self.n}, sets={self.sets} and window={self.window}; "
                "the first two are at least 1, the last is 0 or above."
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "label.answer", "key"})

    def __call__(self, batch: Batch) -> Tensor:
        plain = self.base(batch)
        index, groups = batch.group_index()
        member = self.members(batch)
        score = self.scores(batch, member)
        if self.baseline == "mean":
            score = score - score.mean(1, keepdim=True)
        times = member.sum(1)
        shared = (score[index] * member).sum(1) / times.clamp_min(1)
        alone = torch.bincount(index, minlength=groups)[index] == 1
        place = batch.sampled.cumsum(1)
        near = (place <= self.window) & ~alone.unsqueeze(1)
        return torch.where(near, batch.per_decision(shared.to(plain)), plain) * batch.sampled

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        return self.base.signals(batch, self.base(batch))

    def members(self, batch: Batch) -> Tensor:
        """Which rows are in which set of their group ``[N, M]``: the ``n`` with the smallest of M random numbers."""
        index, groups = batch.group_index()
        seed = (batch.uniform(self)[:, 0] * (1 << 53)).long()
        numbers = decision_keys(seed, self.sets)
        order = numbers.argsort(dim=0, stable=True)
        order = order.gather(0, index[order].argsort(dim=0, stable=True))  # group by group, in the order of the numbers
        first = (torch.bincount(index, minlength=groups).cumsum(0) - torch.bincount(index, minlength=groups))[index]
        rank = torch.empty_like(order).scatter_(
            0, order, torch.arange(batch.rows, device=order.device).unsqueeze(1).expand_as(order)
        )
        return (rank - first.unsqueeze(1) < self.n).to(torch.float64)

    def scores(self, batch: Batch, member: Tensor) -> Tensor:
        """f of each set ``[G, M]``."""
        index, groups = batch.group_index()

        def total(rows: Tensor, owner: Tensor, count: int) -> Tensor:
            return torch.zeros(count, self.sets, dtype=torch.float64, device=rows.device).index_add_(0, owner, rows)

        size = total(member, index, groups)
        earned = total(member * batch.reward.double().unsqueeze(1), index, groups) / size
        if not self.diversity:
            return earned
        pairs, which = torch.unique(torch.stack([index, batch.label["answer"]], 1), dim=0, return_inverse=True)
        present = (total(member, which, len(pairs)) > 0).double()
        different = total(present, pairs[:, 0], groups) / size
        return earned * different if self.combine == "product" else earned + different
