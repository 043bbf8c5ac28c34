"""Advantages of answers that go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.advantage.gae import GAE
from upslope.types import Batch, Ended


@dataclass(frozen=True)
class ExtendedGAE(GAE):
    r"""GAE where an answer may not be over yet: behind a pause the value is taken to stay what it is (T-PPO's EGAE).

    .. math::  V(s_l) := V(s_{l-1}) \quad\Rightarrow\quad A_t = \sum_{j=t}^{l-2} (\gamma\lambda)^{j-t}\delta_j \quad (\gamma = 1)

    The last decision before a pause so has no error of its own, and where the value does not change nothing is learned.
    The returns that a value function learns, in ``signal["returns"]``, come from a lambda of their own.

    Fields:
        unfinished: ``"hold"`` as above; ``"bootstrap"`` takes the value that the rollout measured behind the pause.
        value_lam: 1 is the return itself: no bias from the value function in its own target.
    """

    ranges: ClassVar = {"value_lam": "[0, 1]"}

    gamma: float = 1.0
    lam: float = 0.95
    unfinished: Literal["hold", "bootstrap"] = "hold"
    value_lam: float = 1.0

    def __call__(self, batch: Batch) -> Tensor:
        return super().__call__(self._held(batch))

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        if self.value_lam == self.lam:
            return super().signals(batch, advantage)
        plain = GAE(self.gamma, self.value_lam)
        held = self._held(batch)
        return plain.signals(held, plain(held))

    def _held(self, batch: Batch) -> Batch:
        if self.unfinished == "bootstrap" or batch.ended is None or batch.proximal is None or batch.proximal.value is None:
            return batch
        behind = torch.zeros_like(batch.sampled) if batch.bootstrap is None else batch.bootstrap
        return batch.replace(bootstrap=torch.where(batch.ended == Ended.PAUSED, batch.proximal.value, behind))
