"""Groups weighted by how useful they are at the moment (ADORA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.objective.functional.last_decision import last_decision
from upslope.types import Batch, Ended


@dataclass(frozen=True)
class RolloutUtility(Shape):
    r"""A group's advantages times one weight if its rollouts are useful now, another if not (ADORA).

    .. math::  A \leftarrow A \cdot (useful \text{ if } \max_{right} T > \mathrm{mean}_{wrong}\, T \text{ else } useless)

    T is an answer's length; wrong answers that were cut at the limit are not among those compared. By length, a group is useful
    when thinking longer is what helps on its task; by difficulty, when the policy rarely gets it right.

    Fields:
        useful: weight of useful groups. Above one amplifies them, the paper's mode for strong models.
        useless: weight of the others. Below one attenuates them, the paper's mode for weak models; 1 is the parent method.
        by: ``"length"`` as above; ``"difficulty"`` calls a group useful whose share of right answers is at most ``hard``;
            ``"both"`` wants both.
        hard: the share of right answers up to which a task is hard.
        threshold: a reward from here on counts as right.
        without_right: whether a group without a right answer is useful by length.
        without_wrong: whether a group with right answers, but no wrong one to compare with, is useful by length.
    """

    scope = "step"

    useful: float = 1.0
    useless: float = 0.1
    by: Literal["length", "difficulty", "both"] = "length"
    hard: float = 0.5
    threshold: float = 0.5
    without_right: bool = False
    without_wrong: bool = True

    def __post_init__(self) -> None:
        if self.useful < 0 or self.useless < 0:
            raise MethodError(
                f"RolloutUtility has useful={self.useful:g} and useless={self.useless:g}; a weight below 0 would turn signs around."
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("RolloutUtility scales advantages, and this batch has none yet.")
        return batch.advantage * self.weight(batch).unsqueeze(1)

    def weight(self, batch: Batch) -> Tensor:
        """Weight of each row's group ``[N]``."""
        right = batch.reward >= self.threshold
        chosen = torch.ones_like(right)
        if self.by != "difficulty":
            chosen = chosen & self._longer(batch, right)
        if self.by != "length":
            chosen = chosen & (batch.group_stats(right.to(batch.reward.dtype)).mean <= self.hard)
        useful, useless = (torch.full_like(batch.reward, value) for value in (self.useful, self.useless))
        return torch.where(chosen, useful, useless)

    def _longer(self, batch: Batch, right: Tensor) -> Tensor:
        """Whether the longest right answer of each row's group is longer than its wrong ones on average."""
        index, groups = batch.group_index()
        length, compared = batch.lengths(), ~right & ~cut_off(batch)

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=length.dtype, device=length.device).index_add_(0, index, column)

        longest = torch.full((groups,), -torch.inf, dtype=length.dtype, device=length.device)
        longest = longest.scatter_reduce_(0, index, torch.where(right, length, -torch.inf), "amax")
        wrong = total(compared.to(length.dtype))
        mean = total(torch.where(compared, length, 0.0)) / wrong.clamp_min(1)
        useful = torch.where(wrong > 0, longest > mean, self.without_wrong)
        return torch.where(longest.isfinite(), useful, self.without_right)[index]


def cut_off(batch: Batch) -> Tensor:
    """Rows ``[N]`` that a limit ended."""
    if batch.ended is None:
        return torch.zeros(batch.rows, dtype=torch.bool, device=batch.sampled.device)
    return (last_decision(batch.sampled) & (batch.ended == Ended.TRUNCATED)).any(1)
