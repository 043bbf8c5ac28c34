"""Answers that are unlike the others are worth more than those that repeat them (EVOL-RL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Reward
from upslope.types import NO_ANSWER, Batch

ALIKE = 1e-9
"""Novelties that differ by no more are equal: the sums they come from round."""


@dataclass(frozen=True)
class SemanticNovelty(Reward):
    r"""The vote gives the sign of the reward, novelty its size (EVOL-RL).

    .. math::  R_i = 1 - span\,(1 - u_i) \text{ where } i \text{ is right}, \qquad  R_i = -1 + span\,u_i \text{ where it is wrong}

    The novelty of an answer is one minus the mean of two similarities: that to the others of its side on average, and the largest
    to any other. :math:`u_i` is where it lies between the least (0) and the most novel (1) of its side. Similarity is the cosine of
    what answers say, at least 0. On a side of equal novelty u is one half, an answer alone on its side has 1. Rows without an
    answer get -1 and are nobody's neighbours.

    It stands behind the reward that says which answers are right, such as `MajorityVote`, and takes the place of its 0 and 1.

    Fields:
        span: how much novelty counts. 0 pays 1 and -1; below 1 the least novel right answer is worth more than any wrong one.
        embedding: whether answers are compared by what their ``"sentences"`` mean or by their ``"characters"``.
    """

    ranges: ClassVar = {"span": "[0, 1)"}

    span: float = 0.5
    embedding: Literal["sentences", "characters"] = "sentences"

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "label.answer", f"embedding.{self.embedding}"})

    def __call__(self, batch: Batch) -> Batch:
        if batch.embedding is None:
            raise MethodError("SemanticNovelty compares what answers say, and this batch has no embedding of them.")
        side, novelty = batch.verdict() > 0, torch.zeros_like(batch.reward)
        there = batch.label["answer"] != NO_ANSWER
        index, groups = batch.group_index()
        for group in range(groups):
            members = ((index == group) & there).nonzero().squeeze(1)
            novelty[members] = relative_novelty(batch.embedding[members], side[members]).to(novelty.dtype)
        right, wrong = 1 - self.span * (1 - novelty), -1 + self.span * novelty
        return batch.replace(reward=batch.reward - batch.verdict() + torch.where(side & there, right, wrong))


def relative_novelty(embedding: Tensor, side: Tensor) -> Tensor:
    """How novel each of some answers is among those of its side ``[n]``, from 0 for the least to 1 for the most."""
    vectors, itself = embedding.to(torch.float64), torch.eye(len(side), dtype=torch.bool, device=side.device)
    alike = (vectors @ vectors.T).clamp(0, 1).masked_fill(itself, 0.0)
    near = (side.unsqueeze(0) == side.unsqueeze(1)) & ~itself
    # Alone on its side, an answer is compared with all others; alone altogether, with nobody.
    near = torch.where(near.any(1, keepdim=True), near, ~itself)
    novelty = 1 - 0.5 * ((alike * near).sum(1) / near.sum(1).clamp_min(1) + alike.amax(1)) if len(side) else vectors.sum(1)
    relative = torch.full_like(novelty, 0.5)
    for members in (side, ~side):
        own = novelty[members]
        if len(own) == 1:
            relative[members] = 1.0
        elif len(own) and own.max() - own.min() > ALIKE:
            relative[members] = (own - own.min()) / (own.max() - own.min())
    return relative
