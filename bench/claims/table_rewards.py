"""What the table bed pays for: small frozen dataclasses, each with its exact expectation.

Tokens ``1 .. good`` are the right ones at every position and in every context. That loses nothing: contexts of a table share no
weights, so it does not matter what a token is called (with `TableBed.features` the policy names them differently anyway).
Token 0 ends an answer where the bed says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.errors import UserError

COUNTED_ABOVE = 0.1
"""A right arm counts as kept above this probability."""


class Exact(NamedTuple):
    """What a policy earns in each context ``[C]``: in expectation, and how often the answer is right."""

    reward: Tensor
    success: Tensor


@dataclass(frozen=True)
class Reward:
    """A reward of whole answers. A new kind needs `mean` alone; whatever has no closed form is enumerated.

    Fields:
        good: how many tokens are right at a position; what the bed's ``known`` lifts.
    """

    good: int = 1

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """Expected reward ``[N]`` of the answers ``[N, T]`` in the contexts ``[N]``: what J is made of."""
        raise NotImplementedError(f"{type(self).__name__} needs a method mean(contexts, tokens)")

    def __call__(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
        """The reward paid ``[N]``; ``uniforms [N]`` are the noise of each answer."""
        return self.mean(contexts, tokens)

    def right(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """Which answers ``[N]`` are right."""
        return self.mean(contexts, tokens) >= 1 - 1e-6

    def answer(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """The class ``[N]`` of each answer: equal numbers mean the same final answer. Unless said otherwise all of it."""
        number = torch.zeros(len(tokens), dtype=torch.int64)
        for position in range(tokens.shape[1]):
            number = number * 1_000_003 + tokens[:, position]
        return number

    def components(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
        """Further named parts ``[N]`` for `Batch.components`; ``task`` is always there."""
        return {}

    def exact(self, probability: Tensor, stop: bool) -> Exact | None:
        """In closed form from the table ``[C, T, V]``; ``None`` where the bed is to enumerate all answers."""
        return None

    def extras(self, probability: Tensor) -> dict[str, float]:
        """Further exact numbers of a step, from the table ``[C, T, V]``."""
        return {}


@dataclass(frozen=True)
class GoodArms(Reward):
    """One decision: 1 for each of ``good`` arms, ``decoy`` for one other arm (number ``good + 1``), 0 for the rest.

    Gives ``kept_arms`` (right arms above a tenth, per context) and ``decoy_arm`` (its probability) as further numbers.
    """

    decoy: float = 0.0

    def __post_init__(self) -> None:
        if self.good < 1 or not -1 <= self.decoy < 1:
            raise UserError(f"GoodArms(good={self.good}, decoy={self.decoy}): at least one good arm, and a decoy below 1.")

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        arm = tokens[:, 0]
        return ((arm >= 1) & (arm <= self.good)).float() + self.decoy * (arm == self.good + 1).float()

    def exact(self, probability: Tensor, stop: bool) -> Exact:
        first = probability[:, 0]
        success = first[:, 1 : self.good + 1].sum(1)
        return Exact(success + self.decoy * first[:, self.good + 1 : self.good + 2].sum(1), success)

    def extras(self, probability: Tensor) -> dict[str, float]:
        first = probability[:, 0]
        kept = (first[:, 1 : self.good + 1] > COUNTED_ABOVE).sum(1).float().mean()
        return {"kept_arms": float(kept), "decoy_arm": float(first[:, self.good + 1 : self.good + 2].sum(1).mean())}


@dataclass(frozen=True)
class Lock(Reward):
    """A combination lock: 1 if the token is right at every position, or with ``partial`` the share of positions that are.

    Fields:
        free: positions that do not matter (boilerplate, filler).
        partial: pay for each right position; easier, as every position has a signal of its own.

    Gives ``right_token`` and ``free_token`` as further numbers: the probability of token 1 where it matters and where it does not.
    """

    free: tuple[int, ...] = ()
    partial: bool = False

    def checked(self, positions: int) -> list[int]:
        kept = [position for position in range(positions) if position not in self.free]
        if not kept:
            raise UserError(f"Lock(free={self.free}) leaves none of {positions} positions to get right.")
        return kept

    def _hits(self, tokens: Tensor) -> Tensor:
        chosen = tokens[:, self.checked(tokens.shape[1])]
        return ((chosen >= 1) & (chosen <= self.good)).float()

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        hits = self._hits(tokens)
        return hits.mean(1) if self.partial else hits.prod(1)

    def answer(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return super().answer(contexts, tokens[:, self.checked(tokens.shape[1])])

    def exact(self, probability: Tensor, stop: bool) -> Exact:
        checked = self.checked(probability.shape[1])
        hit = probability[:, :, 1 : self.good + 1].sum(2)
        reached = survival(probability) if stop else torch.ones_like(hit)
        # All right means: no checked position fails, and no free one before the last checked ends the answer.
        going = 1 - probability[:, :, 0] if stop else torch.ones_like(hit)
        free = [position for position in range(checked[-1]) if position not in checked]
        success = hit[:, checked].prod(1) * going[:, free].prod(1)
        return Exact((hit * reached)[:, checked].mean(1) if self.partial else success, success)

    def extras(self, probability: Tensor) -> dict[str, float]:
        first, checked = probability[:, :, 1], self.checked(probability.shape[1])
        free = [position for position in range(first.shape[1]) if position not in checked]
        told = {"right_token": float(first[:, checked].mean())}
        return told | ({"free_token": float(first[:, free].mean())} if free else {})


@dataclass(frozen=True)
class Wrapped(Reward):
    """Another reward with noise on what is paid; J stays that of the reward inside."""

    inner: Reward = field(default_factory=GoodArms)

    def __post_init__(self) -> None:
        object.__setattr__(self, "good", self.inner.good)

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.inner.mean(contexts, tokens)

    def right(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.inner.right(contexts, tokens)

    def answer(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.inner.answer(contexts, tokens)

    def components(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
        return self.inner.components(contexts, tokens, uniforms)

    def exact(self, probability: Tensor, stop: bool) -> Exact | None:
        return self.inner.exact(probability, stop)

    def extras(self, probability: Tensor) -> dict[str, float]:
        return self.inner.extras(probability)


@dataclass(frozen=True)
class Noisy(Wrapped):
    """Gaussian noise on the reward.

    Fields:
        spread: its standard deviation; at 1 a single success says little.
    """

    spread: float = 0.5

    def __call__(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
        normal = torch.erfinv((2 * uniforms - 1).clamp(-0.999999, 0.999999)) * math.sqrt(2)
        return self.mean(contexts, tokens) + self.spread * normal


@dataclass(frozen=True)
class Flipped(Wrapped):
    """A verifier that is wrong in a share of the cases: ``r`` becomes ``1 - r``.

    Fields:
        share: of answers judged wrongly; at 0.5 nothing can be learned.
    """

    share: float = 0.1

    def __call__(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
        reward = self.mean(contexts, tokens)
        return torch.where(uniforms < self.share, 1 - reward, reward)


@dataclass(frozen=True)
class Corrupted(Wrapped):
    """Tasks whose verifier is a coin: contexts ``0, every, 2 every, ...``. Set ``TableBed.features``, or they disturb nobody else.

    Fields:
        every: one task in so many is corrupted.
        chance: of a reward of 1 there.
    """

    every: int = 5
    chance: float = 0.5

    def __call__(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
        coin = (uniforms < self.chance).float()
        return torch.where(contexts % self.every == 0, coin, self.mean(contexts, tokens))


def survival(probability: Tensor) -> Tensor:
    """The chance ``[C, T]`` that an answer reaches each position, where token 0 ends it."""
    going = (1 - probability[:, :, 0]).cumprod(1)
    return torch.cat([torch.ones_like(going[:, :1]), going[:, :-1]], dim=1)
