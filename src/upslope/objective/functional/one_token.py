r"""One token sampled beside each demonstrated one, many times over (OTR): what the policy would have said itself.

.. math::  c_t = \frac1K \sum_{k=1}^K R(a'_k)\,\log\pi_\theta(a'_k|s_t), \qquad a'_k \sim \pi_\theta(\cdot|s_t)^{1/\kappa}, \qquad
           R(a') = 1 \text{ if } a' = x_t \text{ else } \beta

With :math:`\kappa = 1` its expected gradient is :math:`(1-\beta)\,\nabla\pi_\theta(x_t)`: that of the demonstrated token's
probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from upslope.objective.base import Probe, ProbeInputs

NUMBERS_PER_SAMPLE = 8
"""About four integers of 64 bits are held for each sample while it is drawn."""


@dataclass(frozen=True)
class OneTokenSamples(Probe):
    """Mean over tokens sampled at each place of reward times log-probability, with its gradient; the sampling has none.

    Fields:
        samples: K. More lowers the variance; each costs as much as a few entries of the vocabulary.
        wrong: the reward of a token other than the demonstrated one.
        temperature: of the sampling; above 1 tries more tokens the policy thinks unlikely.
    """

    name: ClassVar[str] = "one_token"
    differentiable: ClassVar[bool] = True
    ranges: ClassVar = {"samples": "[1, inf)", "wrong": "(-inf, 1)", "temperature": "(0, inf)"}

    samples: int = 256
    wrong: float = -0.1
    temperature: float = 1.3

    def width(self) -> int:
        return NUMBERS_PER_SAMPLE * self.samples

    def __call__(self, seen: ProbeInputs) -> Tensor:
        drawn = self.drawn(seen)
        reward = seen.logits.new_full(drawn.shape, self.wrong / self.samples)
        reward.masked_fill_(drawn == seen.action.unsqueeze(1), 1 / self.samples)
        # Log-probabilities of what was drawn alone: no second copy of the vocabulary.
        return (reward * seen.logits.gather(1, drawn)).sum(1) - reward.sum(1) * seen.logits.logsumexp(1)

    @torch.no_grad()
    def drawn(self, seen: ProbeInputs) -> Tensor:
        """The sampled ids ``[M, K]``: where random numbers fall between the cumulative probabilities."""
        # In float64: a sum in float32 over a large vocabulary no longer sees its rare tokens, which then are never drawn.
        edges = (seen.logits / self.temperature).softmax(1).cumsum(1, dtype=torch.float64)
        drawn = torch.searchsorted(edges, seen.uniforms(self, self.samples) * edges[:, -1:], right=True)
        return drawn.clamp_max(edges.shape[1] - 1)  # logits that are not finite lead nowhere; the learner notices them later
