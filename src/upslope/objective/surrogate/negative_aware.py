"""Supervised learning on right answers and, through the negative policy they imply, on wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Notes, Surrogate
from upslope.objective.surrogate.clip import advantage_of
from upslope.types import Batch, Scope

LOG_CEILING = 10.0
"""The log-ratio is cut off here, as in the paper's code: a right token that is e^10 times likelier needs no more."""


@dataclass(frozen=True)
class NegativeAware(Surrogate):
    r"""Maximum likelihood of right answers under the policy and of wrong ones under the negative policy it implies (NFT).

    .. math::  L_+ = -w_p \log r, \qquad
               L_- = -w_p\, negative\, \log\max_v\Big(\frac{1 - p\,r}{1 - p},\ floor\Big)

    :math:`p` is ``signal["success"]``, the group's share of right answers; which answers are right the sign of the advantage
    says (its size is not used). :math:`\max_v` bounds the value and keeps the gradient of what it bounds, so that a wrong token
    which has become likely is still pushed down.

    Fields:
        negative: weight of wrong answers; 0 learns from the right ones alone (rejection fine-tuning).
        floor: 1 never lets a wrong token be pushed harder than at the first update; smaller lets the push grow with the ratio.
        weighting: the task's weight :math:`w_p`: ``"failure"`` is 1 - p (at the first update Dr.GRPO's gradient), ``"odds"``
            sqrt((1 - p) / p) (GRPO's, with the population's spread), ``"none"`` 1.
        unit: ``"token"`` takes each token's ratio, ``"sequence"`` the product over the answer.
    """

    negative: float = 1.0
    floor: float = 1.0
    weighting: Literal["none", "failure", "odds"] = "failure"
    unit: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        if not self.negative >= 0:
            raise MethodError(f"NegativeAware.negative is {self.negative:g}; a weight is 0 or above.")
        if not self.floor > 0:
            raise MethodError(f"NegativeAware.floor is {self.floor:g}; a logarithm is taken of it, so it is above 0.")

    def takes(self, branches: tuple[str, ...]) -> bool:
        return branches == ("token",)

    def seen_at_once(self) -> Scope:
        return "decision" if self.unit == "token" else "sequence"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        (branch,), advantage = branches, advantage_of(batch)
        if "success" not in batch.signal:
            raise MethodError(
                "NegativeAware needs signal['success'], the group's success rate, which this advantage does not write."
            )
        success = batch.signal["success"]
        log, share = branch.log, torch.ones_like(branch.log)
        if self.unit == "sequence":  # the answer's loss in equal parts on its tokens: their sum gives it back
            log, share = batch.per_decision((branch.log * batch.sampled).sum(1)), 1 / batch.lengths().clamp_min(1).unsqueeze(1)
        log = log.clamp(max=LOG_CEILING)
        implied = (1 - success * log.exp()) / (1 - success)
        implied = implied + (implied.clamp_min(self.floor) - implied).detach()
        loss = torch.where(advantage > 0, -log, -self.negative * implied.log())
        return torch.where(advantage == 0, 0.0, self._weight(success) * share * loss), {}

    def _weight(self, success: Tensor) -> Tensor:
        if self.weighting == "none":
            return torch.ones_like(success)
        return 1 - success if self.weighting == "failure" else ((1 - success) / success.clamp_min(1e-8)).sqrt()
