"""Rewards and parts that single claims need: a confident mistake, boxes, and the complements of what methods do."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from table_rewards import Exact, Reward
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.base import Reward as RewardPart
from upslope.objective.base import Weight
from upslope.types import Batch


@dataclass(frozen=True)
class ConfidentMistake(Reward):
    """Half for token 2 at the first position, half for token 1 at every later one: token 1 first is a mistake.

    Let the first position be a filler of the bed, and the mistake is made with confidence. Gives ``mistake``, its probability.
    """

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return 0.5 * (tokens[:, 0] == 2).float() + 0.5 * (tokens[:, 1:] == 1).float().prod(1)

    def exact(self, probability: Tensor, stop: bool) -> Exact:
        first, later = probability[:, 0, 2], probability[:, 1:, 1].prod(1)
        return Exact(0.5 * first + 0.5 * later, first * later)

    def extras(self, probability: Tensor) -> dict[str, float]:
        return {"mistake": float(probability[:, 0, 1].mean())}


@dataclass(frozen=True)
class Boxes(Reward):
    """Answer with left, top, right, bottom of a context's box: J and success are how often the centre of the answer hits it.

    Components are ``hit``, ``iou``, ``box`` (closeness) and ``difficulty``, as of the task grounding. Gives, for the answers
    that are boxes at all, the means of IoU (``iou``), of area over the target's (``growth``) and of its logarithm's size
    (``size_error``), and ``small_hit``, the hits in the quarter of contexts with the smallest boxes.

    Fields:
        contexts: as of the bed. size: of the screen; the bed's vocabulary is one more.
    """

    contexts: int = 16
    size: int = 7

    def target(self) -> Tensor:
        """The boxes ``[C, 4]``: widths and heights from 1 to the screen's less one, spread evenly, at places that vary."""
        number = torch.arange(self.contexts)
        width, height = 1 + number % (self.size - 1), 1 + (number * 5 // 3) % (self.size - 1)
        left, top = (number * 7) % (self.size - width + 1), (number * 3) % (self.size - height + 1)
        return torch.stack([left, top, left + width, top + height], 1)

    def parts(self, contexts: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """What answers ``[N, 4]`` are worth, each ``[N]``; zero where they are no boxes."""
        if tokens.shape[1] != 4:
            raise UserError(f"Boxes pays for four numbers, and an answer of this bed has {tokens.shape[1]}.")
        target, found = self.target()[contexts].float(), tokens.float()
        valid = ((found[:, 2:] > found[:, :2]).all(1)).float()
        centre = (found[:, :2] + found[:, 2:]) / 2
        hit = ((centre >= target[:, :2]) & (centre <= target[:, 2:])).all(1).float()
        shared = (torch.minimum(found[:, 2:], target[:, 2:]) - torch.maximum(found[:, :2], target[:, :2])).clamp_min(0).prod(1)
        wanted, given = (target[:, 2:] - target[:, :2]).prod(1), (found[:, 2:] - found[:, :2]).clamp_min(0).prod(1)
        near = 1 - (found - target).abs() / self.size
        close = torch.where((near > 0).all(1), 4 / (1 / near.clamp_min(1e-9)).sum(1), 0.0)
        worth = {"hit": hit, "iou": shared / (wanted + given - shared), "box": close, "growth": given / wanted}
        return {name: value * valid for name, value in worth.items()} | {"valid": valid, "difficulty": self.size / wanted.sqrt()}

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.parts(contexts, tokens)["hit"]

    def components(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
        return {name: self.parts(contexts, tokens)[name] for name in ("hit", "iou", "box", "difficulty")}

    def exact(self, probability: Tensor, stop: bool) -> Exact:
        hit = self._expected(probability, "hit")
        return Exact(hit, hit)

    def extras(self, probability: Tensor) -> dict[str, float]:
        valid = self._expected(probability, "valid").clamp_min(1e-9)
        told = {name: float((self._expected(probability, name) / valid).mean()) for name in ("iou", "growth", "size_error")}
        target = self.target()
        smallest = (target[:, 2:] - target[:, :2]).prod(1).argsort()[: self.contexts // 4]
        return told | {"small_hit": float(self._expected(probability, "hit")[smallest].mean())}

    def _expected(self, probability: Tensor, name: str) -> Tensor:
        """Exact mean over all answers in each context ``[C]``."""
        chance = torch.einsum("ca,cb,cd,ce->cabde", *probability.unbind(1)).flatten(1)
        return (chance * _worths(self)[name]).sum(1)


@functools.cache
def _worths(boxes: Boxes) -> dict[str, Tensor]:
    """The parts of every answer in every context, each ``[C, answers]``."""
    answers = torch.cartesian_prod(*[torch.arange(boxes.size + 1)] * 4)
    contexts = torch.arange(boxes.contexts).repeat_interleave(len(answers))
    parts = boxes.parts(contexts, answers.repeat(boxes.contexts, 1))
    parts["size_error"] = torch.where(parts["valid"] > 0, parts["growth"].clamp_min(1e-9).log().abs(), 0.0)
    return {name: value.reshape(boxes.contexts, -1) for name, value in parts.items()}


@dataclass(frozen=True)
class PaidFor(RewardPart):
    """The reward as a sum of the task's components, each times a weight."""

    hit: float = 1.0
    iou: float = 0.25
    box: float = 0.125

    def __call__(self, batch: Batch) -> Batch:
        given = batch.components
        return batch.replace(reward=self.hit * given["hit"] + self.iou * given["iou"] + self.box * given["box"])


@dataclass(frozen=True)
class LowEntropy(Weight):
    """Only the decisions of lowest entropy: what `TopEntropy` leaves out.

    Fields:
        fraction: share of decisions that learn.
    """

    scope = "update"

    fraction: float = 0.8

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def counts_dropped(self) -> bool:
        return False

    def __call__(self, batch: Batch) -> Tensor:
        assert batch.proximal is not None and batch.proximal.entropy is not None
        entropy = batch.proximal.entropy
        values = entropy[batch.sampled > 0]
        threshold = values.topk(max(1, int(self.fraction * len(values))), largest=False).values[-1]
        return (entropy <= threshold).to(entropy.dtype)
