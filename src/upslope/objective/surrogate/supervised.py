"""Learning to predict the verifier: a score made of the policy's own log-ratio against the label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of, finite_logp
from upslope.types import Batch


@dataclass(frozen=True)
class LabelFromRatio(Surrogate):
    r"""Cross-entropy between the reward and a score made of the policy's log-ratio, compared within the group (PACS).

    .. math::  \hat r_i = scale \sum_t \log\frac{\pi_\theta}{\pi_{old}}, \qquad
               \psi_i = \hat r_i - \frac{1}{G-1}\sum_{j \ne i} \hat r_j, \qquad  L_i = w_i\, \mathrm{BCE}(\sigma(\psi_i), R_i)

    The label :math:`R` (0 to 1) is the advantage slot's value: `RawReward`. The gradient goes through every member of the group,
    and fades where an answer is already told right from wrong. Each answer's loss stands on all its decisions, so that a mean
    over them gives it back; an answer without decisions is in no group.

    Fields:
        scale: larger tells right from wrong after a smaller change of the policy, so that learning stops sooner.
        score: ``"log-ratio"`` as above; ``"likelihood"`` is the mean log-probability instead of the summed log-ratio.
        centre: :math:`\psi`: ``"siblings"`` as above; ``"standard"`` subtracts the group's mean and divides by its spread (held
            constant unless ``spread_gradient``); ``"none"`` is the score itself.
        balance: weigh right and wrong answers of a group so that each class counts half.
        eps: added to the spread of ``"standard"``. At a step's first update all scores are 0, so it alone divides.
        spread_gradient: differentiate the spread of ``"standard"`` too, as in the released code: scaling all scores of a group
            then changes nothing, and only their pattern learns. A spread of zero has no gradient.
    """

    scope = "group"
    silent_without_advantage = False
    ranges: ClassVar = {"eps": "[0, inf)"}

    scale: float = 1.0
    score: Literal["log-ratio", "likelihood"] = "log-ratio"
    centre: Literal["siblings", "standard", "none"] = "siblings"
    balance: bool = True
    eps: float = 1e-6
    spread_gradient: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise MethodError(f"LabelFromRatio.scale is {self.scale:g}; it is above 0.")

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), there = branches, (batch.lengths() > 0).to(batch.sampled.dtype)
        index, groups = batch.group_index()

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=column.dtype, device=column.device).index_add(0, index, column * there)[index]

        label = batch.row_mean(advantage_of(batch))
        log = branch.log if self.score == "log-ratio" else finite_logp(batch)
        score = self.scale * (log * batch.sampled).sum(1)
        if self.score == "likelihood":
            score = score / batch.lengths().clamp_min(1)
        size = total(there)
        loss = binary_cross_entropy_with_logits(self._centred(score, size, total), label, reduction="none")
        if self.balance:
            right = (label > 0.5).to(label.dtype)
            of_class = torch.where(right > 0, total(right), total(1 - right))
            loss = loss * torch.where(of_class < size, size / (2 * of_class.clamp_min(1)), 1.0)
        return batch.per_decision(loss), {}

    def _centred(self, score: Tensor, size: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        """How much better than the group the policy rates each answer ``[N]``; an answer alone in its group gets 0."""
        if self.centre == "none":
            return score
        centred = score - total(score) / size.clamp_min(1)
        if self.centre == "siblings":
            return centred * size / (size - 1).clamp_min(1)
        variance = total(centred.square()) / (size - 1).clamp_min(1)
        if not self.spread_gradient:
            return centred / (variance.sqrt().detach() + self.eps)
        apart = variance > 0  # the root's derivative is infinite at zero
        spread = torch.where(apart, torch.where(apart, variance, 1.0).sqrt(), 0.0)
        return centred / (spread + self.eps)
