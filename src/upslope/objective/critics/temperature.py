"""The weight of the entropy, learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.targets import networks
from upslope.objective.networks import Scalar
from upslope.types import Batch

CHOICES_SHARE = 0.98
"""Of the largest entropy that a softmax can have, as its papers aim for."""


@dataclass(frozen=True)
class Temperature(Learned):
    r"""Falls while the policy is more random than wanted, rises while it is less (SAC).

    .. math::  L = -\log\alpha \, (\log \pi(a | s) + \bar H), \quad a \sim \pi

    It is fitted after the policy, to what that did before its update.

    Fields:
        start: where it begins.
        target_entropy: what is wanted; ``auto`` is minus the number of dimensions, or 0.98 of the most that choices allow.
        pair: two of them, one for each of the two tasks of an environment that is never reset.
    """

    order: int = 1
    start: float = 1.0
    target_entropy: float | Literal["auto"] = "auto"
    pair: bool = False

    def model_network(self) -> ModelNetwork:
        return Scalar(self.start, self.pair)

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        wanted = self.target_entropy
        if isinstance(wanted, str):
            wanted = CHOICES_SHARE * math.log(nets.action_size) if nets.discrete else -float(nets.action_size)
        if nets.discrete:
            choices = nets.log_probabilities("now").detach()
            surprise = (choices.exp() * choices).sum(-1)
        else:
            surprise = nets.actions("now").logp.detach().squeeze(-1)
        logarithm = nets.column(nets.scope, "logarithm")
        return -logarithm * (surprise + wanted), {"temperature": logarithm.detach().exp(), "entropy": -surprise}
