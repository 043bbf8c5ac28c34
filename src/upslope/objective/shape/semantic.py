"""Smaller steps where the answers disagree in meaning (SEED-GRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Shape
from upslope.types import Batch


@dataclass(frozen=True)
class SemanticEntropy(Shape):
    r"""A group's advantages times a factor that falls with the semantic entropy of its answers (SEED-GRPO).

    .. math::  A \leftarrow A\, f\!\Big(\alpha \frac{SE}{\log G}\Big),\qquad SE = -\frac1K \sum_{k=1}^K \log \frac{n_k}{G}

    The G answers of a group fall into K classes of :math:`n_k` that mean the same. One class gives a factor of one, G classes
    give :math:`f(\alpha)`.

    Fields:
        alpha: how much disagreement counts. 0 is the parent method.
        form: f. ``"exponential"`` is :math:`e^{-x}`, ``"linear"`` :math:`1-x`, ``"focal"`` :math:`(1-x)^{power}`; never below 0.
        power: of the focal form. Larger spares only groups that agree almost entirely.
        entropy: ``"mean_log"`` as above, which is the form the paper estimates; ``"shannon"`` is :math:`-\sum p_k \log p_k`, in
            which a rare class counts little.
    """

    scope = "step"

    alpha: float = 0.5
    form: Literal["linear", "exponential", "focal"] = "exponential"
    power: float = 2.0
    entropy: Literal["mean_log", "shannon"] = "mean_log"

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise MethodError(f"SemanticEntropy.alpha is {self.alpha:g}; below 0 it would favour what is uncertain.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "label.answer"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.advantage is None:
            raise MethodError("SemanticEntropy scales advantages, and this batch has none yet.")
        return batch.advantage * self.factor(batch).unsqueeze(1)

    def factor(self, batch: Batch) -> Tensor:
        """f of each row's group ``[N]``."""
        disagreement = self.alpha * self.relative_entropy(batch)
        if self.form == "exponential":
            return (-disagreement).exp()
        left = (1 - disagreement).clamp_min(0)
        return left if self.form == "linear" else left**self.power

    def relative_entropy(self, batch: Batch) -> Tensor:
        """Semantic entropy of each row's group over the largest it could be, in [0, 1]; a group of one has none."""
        if "answer" not in batch.label:
            raise MethodError("SemanticEntropy needs to know which answers mean the same, and this batch has no label 'answer'.")
        index, groups = batch.group_index()
        pairs, counts = torch.unique(torch.stack([index, batch.label["answer"]], 1), dim=0, return_counts=True)
        owner, count = pairs[:, 0], counts.to(batch.reward.dtype)

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=column.dtype, device=column.device).index_add_(0, owner, column)

        size = total(count)
        share = count / size[owner]
        # Each class counts by its share, or all the same.
        weight = share if self.entropy == "shannon" else 1 / total(torch.ones_like(share))[owner]
        entropy = -total(weight * share.log())
        return torch.where(size > 1, entropy / size.clamp_min(2).log(), 0.0)[index]
