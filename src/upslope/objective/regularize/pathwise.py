"""Regularisers of a policy whose own actions carry its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.objective.base import Regularizer
from upslope.objective.critics.targets import networks
from upslope.types import Batch


@dataclass(frozen=True)
class PathwiseKL(Regularizer):
    r"""Distance to a reference at the action that the policy draws, with the gradient through that action (off-policy MDPO).

    .. math::  w\,(\log \pi(a | s) - \log \pi_{ref}(a | s)), \quad a \sim \pi \text{ with its gradient}

    Its mean is :math:`w\,KL(\pi \,\|\, \pi_{ref})`. Over choices the expectation is exact.

    Fields:
        weight: w, one over the step size of mirror descent. Larger moves less.
        reference: name of the policy compared with.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1.0
    reference: str = "previous"

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.reference}.logp"})

    def __call__(self, batch: Batch) -> Tensor:
        nets = networks(batch)
        if nets.discrete:
            own = nets.log_probabilities("now")
            return self.weight * (own.exp() * (own - nets.log_probabilities("now", whose=self.reference))).sum(-1)
        drawn = nets.actions("now")
        return self.weight * (drawn.logp - nets.logp("now", drawn.action, whose=self.reference)).squeeze(-1)


@dataclass(frozen=True)
class SmallOutputs(Regularizer):
    r"""Keeps what the policy's network puts out near zero: mean and logarithm of the spread, or logits.

    .. math::  \frac{w}{D} \lVert f(s) \rVert^2

    A tanh policy whose mean runs away is certain for good: no gradient comes back through the squashing.

    Fields:
        weight: w; D is the number of action dimensions, or of choices.
    """

    ranges: ClassVar = {"weight": "[0, inf)"}

    weight: float = 1e-3

    def __call__(self, batch: Batch) -> Tensor:
        nets = networks(batch)
        return self.weight * nets.column("policy", "output").square().sum(-1) / nets.action_size
