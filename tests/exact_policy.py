"""A policy small enough to know everything about: three tokens, at most four of them, a table of logits per prefix.

All its sequences are enumerated, so the expected reward, its gradient, the divergence to another policy and the entropy are
sums, not estimates. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from upslope.objective.estimator import method_loss
from upslope.runtime.seeding import generator
from upslope.types import Batch, Ended, Method, View

VOCABULARY = 3
LENGTH = 4
PREFIXES = sum(VOCABULARY**length for length in range(LENGTH))
END = 0
"""The token that ends an answer early."""


@dataclass(frozen=True, eq=False)
class ExactPolicy:
    """Logits ``[40, 3]``, one line per prefix. With ``ragged``, token 0 ends an answer; else all 81 sequences have four tokens."""

    logits: Tensor
    ragged: bool = True

    @staticmethod
    def random(seed: int, ragged: bool = True, spread: float = 0.7) -> ExactPolicy:
        table = spread * torch.randn(PREFIXES, VOCABULARY, generator=generator(seed, "table"), dtype=torch.float64)
        return ExactPolicy(table.requires_grad_(), ragged)

    def moved(self, seed: int, by: float) -> ExactPolicy:
        """Another policy nearby."""
        step = by * torch.randn(self.logits.shape, generator=generator(seed, "move"), dtype=torch.float64)
        return ExactPolicy((self.logits.detach() + step).requires_grad_(), self.ragged)

    def sequences(self) -> tuple[Tensor, Tensor]:
        """Every answer ``[M, 4]`` and which of its tokens were sampled ``[M, 4]``."""
        found: dict[tuple[int, ...], int] = {}
        for tokens in product(range(VOCABULARY), repeat=LENGTH):
            length = tokens.index(END) + 1 if self.ragged and END in tokens else LENGTH
            found[tokens[:length] + (END,) * (LENGTH - length)] = length
        lengths = torch.tensor(list(found.values())).unsqueeze(1)
        return torch.tensor(list(found)), (torch.arange(LENGTH) < lengths).double()

    def logp(self, tokens: Tensor) -> Tensor:
        """Log-probability of each token ``[N, 4]``."""
        return self.logits.log_softmax(1)[_prefix(tokens)].gather(2, tokens.unsqueeze(2)).squeeze(2)

    def entropy(self, tokens: Tensor) -> Tensor:
        """Entropy of the distribution each token was drawn from ``[N, 4]``."""
        table = self.logits.log_softmax(1)
        return -(table.exp() * table).sum(1)[_prefix(tokens)]

    def sequence_logp(self) -> Tensor:
        """Log-probability of every answer ``[M]``."""
        tokens, sampled = self.sequences()
        return (self.logp(tokens) * sampled).sum(1)

    def expected(self, reward: Tensor) -> Tensor:
        """J, given the reward of every answer ``[M]``."""
        return (self.sequence_logp().exp() * reward).sum()

    def expected_gradient(self, reward: Tensor) -> Tensor:
        """Of J, in the table."""
        return torch.autograd.grad(self.expected(reward), self.logits)[0]

    def divergence(self, other: ExactPolicy) -> Tensor:
        """KL(this || other) over whole answers."""
        mine = self.sequence_logp()
        return (mine.exp() * (mine - other.sequence_logp())).sum()

    def divergence_at(self, other: ExactPolicy, tokens: Tensor) -> Tensor:
        """KL(this || other) of the distribution each token was drawn from ``[N, 4]``."""
        mine = self.logits.log_softmax(1)
        return (mine.exp() * (mine - other.logits.log_softmax(1))).sum(1)[_prefix(tokens)]

    def answer_entropy(self) -> Tensor:
        """Entropy over whole answers."""
        return -(self.sequence_logp().exp() * self.sequence_logp()).sum()

    def draw(self, count: int, seed: int) -> Tensor:
        """Indices of sampled answers ``[count]``."""
        return torch.multinomial(self.sequence_logp().exp().detach(), count, replacement=True, generator=generator(seed, "draw"))

    def batch(
        self,
        picks: Tensor,
        reward: Tensor,
        samples: int,
        proximal: ExactPolicy | None = None,
        reference: ExactPolicy | None = None,
    ) -> Batch:
        """These answers as a batch in groups of ``samples``; the current columns differentiate to this policy's table."""
        tokens, sampled = (column[picks] for column in self.sequences())
        before = proximal or self
        start = reference or before
        last = sampled * (sampled.flip(1).cumsum(1).flip(1) == 1)
        value = torch.zeros_like(sampled)
        return Batch(
            sampled=sampled,
            reward=reward[picks],
            group=torch.arange(len(picks)) // samples,
            task=torch.arange(len(picks)) // samples,
            behavior=View(before.logp(tokens).detach()),
            proximal=View(before.logp(tokens).detach(), before.entropy(tokens).detach(), value),
            current=View(self.logp(tokens), self.entropy(tokens), value),
            reference={"start": View(start.logp(tokens).detach())},
            action=tokens,
            ended=(last * int(Ended.TERMINATED)).to(torch.int8),
            horizon=LENGTH,
        )

    def gradient(self, method: Method, batch: Batch) -> Tensor:
        """Gradient of the method's loss in the table."""
        # The batch keeps its graph: two methods are compared on the same one.
        return torch.autograd.grad(method_loss(method, batch), self.logits, retain_graph=True)[0]


def _prefix(tokens: Tensor) -> Tensor:
    """Line of the table for what stands before each token ``[N, 4]``."""
    number, offset, lines = torch.zeros(len(tokens), dtype=torch.long), 0, []
    for position in range(LENGTH):
        lines.append(offset + number)
        offset += VOCABULARY**position
        number = number * VOCABULARY + tokens[:, position]
    return torch.stack(lines, dim=1)


def chunk_gradients(policy: ExactPolicy, method: Method, batches: list[Batch], prepare: Callable[[Batch], Batch]) -> Tensor:
    """Gradient of the gain (minus the loss) on each batch, ``[chunks, 120]``."""
    return torch.stack([-policy.gradient(method, prepare(batch)).flatten() for batch in batches])


def worst_z(estimates: Tensor, exact: Tensor) -> float:
    """Largest deviation of the mean from the exact gradient, in standard errors, over coordinates that vary at all."""
    error = estimates.std(0) / math.sqrt(len(estimates))
    varies = error > 1e-12
    assert torch.allclose(estimates.mean(0)[~varies], exact.flatten()[~varies])
    return float(((estimates.mean(0) - exact.flatten()).abs() / error)[varies].max())


def z_along(estimates: Tensor, exact: Tensor) -> float:
    """Deviation in standard errors along the exact gradient."""
    along = estimates @ exact.flatten() / exact.norm() - exact.norm()
    return float(along.mean() / along.std() * math.sqrt(len(along)))


def varied_reward(policy: ExactPolicy) -> Tensor:
    """Some reward of every answer, none near zero: a baseline has something to remove."""
    tokens, sampled = policy.sequences()
    return 2.0 + (tokens == 1).double().sum(1) * 0.5 - 0.3 * sampled.sum(1)
