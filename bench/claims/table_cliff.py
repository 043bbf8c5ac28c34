"""A reward that can be gamed: what is paid goes on rising where what is wanted has fallen off a cliff."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from table_rewards import Exact, Reward
from torch import Tensor

from upslope.errors import UserError


@dataclass(frozen=True)
class Cliff(Reward):
    """Pays for each token 1: the share of positions that have it. Wanted is the same up to ``edge`` of them, and nothing beyond.

    J is what is wanted; ``paid`` among the further numbers is what the learner sees, ``over`` how often the edge is passed.

    Fields:
        edge: the most tokens 1 an answer may have.
    """

    edge: int = 5

    def __post_init__(self) -> None:
        if self.edge < 1:
            raise UserError(f"Cliff(edge={self.edge}): at least one token must be allowed.")

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return (tokens == 1).float().mean(1)

    def right(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return (tokens == 1).sum(1) <= self.edge

    def counts(self, probability: Tensor) -> Tensor:
        """Probability ``[C, T + 1]`` of each number of tokens 1."""
        hit = probability[:, :, 1]
        found = torch.zeros(len(hit), hit.shape[1] + 1)
        found[:, 0] = 1
        for position in range(hit.shape[1]):
            chance = hit[:, position : position + 1]
            found = found * (1 - chance) + torch.cat([torch.zeros_like(chance), found[:, :-1]], 1) * chance
        return found

    def exact(self, probability: Tensor, stop: bool) -> Exact:
        counts = self.counts(probability)
        allowed = torch.arange(counts.shape[1]) <= self.edge
        worth = torch.arange(counts.shape[1]) / (counts.shape[1] - 1) * allowed
        return Exact(counts @ worth, counts @ allowed.float())

    def extras(self, probability: Tensor) -> dict[str, float]:
        over = 1 - self.exact(probability, False).success
        return {"paid": float(probability[:, :, 1].mean()), "over": float(over.mean())}
