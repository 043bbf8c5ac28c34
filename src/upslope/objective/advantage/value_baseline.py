"""The whole reward against what a value function expected of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.advantage.gae import paid
from upslope.objective.base import Advantage
from upslope.objective.functional.last_decision import last_decision
from upslope.types import Batch


@dataclass(frozen=True)
class ValueBaseline(Advantage):
    r"""All that was paid for a row, minus the value: :math:`A_{it} = R_i - V_i` (SAFE). Writes R to ``signal["returns"]``.

    Fields:
        at: ``"last"`` takes the value of the row's last decision for all of them, which has seen nearly the whole answer: one
            number per answer. ``"decision"`` takes each decision's own, a baseline that has seen only what came before.
    """

    at: Literal["last", "decision"] = "last"

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.value"})

    def __call__(self, batch: Batch) -> Tensor:
        if batch.proximal is None or batch.proximal.value is None:
            raise MethodError("ValueBaseline needs a value function: give the method models={'value': PessimisticValue()}.")
        value = torch.where(batch.sampled > 0, batch.proximal.value, 0.0)
        if self.at == "last":
            value = batch.per_decision((value * last_decision(batch.sampled)).sum(1))
        return (self._returns(batch) - value) * batch.sampled

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        return {"returns": self._returns(batch)}

    def _returns(self, batch: Batch) -> Tensor:
        return batch.per_decision(torch.where(batch.sampled > 0, paid(batch), 0.0).sum(1))
