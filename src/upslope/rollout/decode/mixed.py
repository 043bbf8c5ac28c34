"""Two models that speak with one voice: at each token their logits are averaged, and the token is drawn from that.

Both read what was drawn, so each has a cache of its own. This is plain torch on every device: no graphs are recorded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.plain import Stream
from upslope.rollout.decode.record import DecodeJob
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.weights import Weights


class MixedModels(NamedTuple):
    """Copies of one model with different weights; ``share`` is that of the second one's logits."""

    first: LanguageModel
    second: LanguageModel
    share: float

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Of a geometric mixture: a token's chance is proportional to the weighted geometric mean of its two chances."""
        return (1 - self.share) * first.float() + self.share * second.float()


class MixedStepper(Stepper):
    """As `Stepper`, with another one beside it that reads the same tokens.

    Args:
        texts: the prompts.
        count, room: slots, and the most tokens a row may say.
    """

    def __init__(self, models: MixedModels, texts: Sequence[Sequence[int]], count: int, room: int, job: DecodeJob):
        positions = max(map(len, texts)) + room
        own, other = (_weights(model, positions) for model in models[:2])
        super().__init__(own, count, room)
        self.models, self.other = models, Stepper(other, count, room)
        self.begin(Prompts(own, texts), job)
        self.other.begin(Prompts(other, texts), job)

    def fill(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        super().fill(slots, rows, prompts)
        self.other.fill(slots, rows, prompts)

    def move(self, source: Tensor, target: Tensor) -> None:
        super().move(source, target)
        self.other.move(source, target)

    def logits(self, count: int) -> Tensor:
        for theirs, mine in zip(self.other.slots.columns(), self.slots.columns(), strict=True):
            theirs.copy_(mine)
        return self.models.logits(super().logits(count), self.other.logits(count))


class MixedStream:
    """As `Stream`, of two models."""

    def __init__(self, models: MixedModels, prompts: Sequence[list[int]], each: Sequence[int], room: int):
        self.models = models
        self.streams = [Stream(model, prompts, each, room) for model in models[:2]]

    @property
    def logits(self) -> Tensor:
        first, second = self.streams
        return self.models.logits(first.logits, second.logits)

    def keep(self, index: Tensor) -> bool:
        # Both models are of one kind, so both caches can do it or neither can.
        return all([stream.keep(index) for stream in self.streams])

    def advance(self, token: Tensor) -> None:
        for stream in self.streams:
            stream.advance(token)


def _weights(model: LanguageModel, positions: int) -> Weights:
    assert model.body is not None
    return Weights(model.body, positions, model.compute_dtype)
