"""When a task is done, learned from demonstrations that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Notes
from upslope.objective.critics.targets import networks
from upslope.objective.networks import MLPEnsemble
from upslope.types import Batch, Source

RECORDED = "recorded_reward"
"""Where rewards stand that a learned one has taken the place of."""
FLOOR = 1e-6
"""Added to each squared slope: the root of a sum of zeros has no gradient."""


@dataclass(frozen=True)
class SuccessClassifier(Learned):
    r"""Tells states in which the task is done from others (SERL's reward classifier, and VICE).

    .. math::  L = \tfrac12 \operatorname{mean}_{\text{done}} \operatorname{softplus}(-x(s'))
        + \tfrac12 \operatorname{mean}_{\text{not}} \operatorname{softplus}(x(s'))

    Done are the states that demonstrations reached with a reward; whichever of the two an update has less of counts as much.
    ``SuccessClassifier(adversarial=True, label_smoothing=0.2, mixup=True, gradient_penalty=10)`` is VICE:

    .. math::  y = (1 - \epsilon)\,[\text{done}] + \tfrac\epsilon2, \quad
        \tilde s = \lambda s'_i + (1 - \lambda) s'_j, \quad \lambda \sim U(0, 1), \quad
        L + w \operatorname{mean} (\lVert \nabla_s x(\hat s) \rVert - 1)^2

    j is a random partner, whose label counts by what is left of lambda. Each decision has an :math:`\hat s`, uniformly between its
    state and one of the other kind (of mixed ones, with ``mixup``).

    It logs ``accuracy``, the share of labels that it gets right, and ``agreement``, how often it says of the run's own states what
    the environment pays: of both kinds the mean of the two. Unless ``adversarial``, it never learns from the run's own states, so
    that this is its accuracy on what it has not seen, wherever the environment pays for what is done. It is 0 while there are none.

    Fields:
        above: a recorded reward above this says that the task is done.
        adversarial: states that the run itself reaches count as not done, too (VICE), so that the policy cannot please a classifier
            that has not seen what it does. Otherwise the classifier learns from demonstrations alone.
        label_smoothing: how far labels are drawn to a half; VICE takes 0.2. Logits then stay small.
        mixup: learn from mixtures of two states and their labels, one share for all of an update, in place of the states.
        gradient_penalty: weight of the penalty on slopes other than one between the two kinds; VICE takes 10. A larger one makes
            the classifier change more slowly with the state.
        network: what it is made of.
    """

    ranges: ClassVar = {"label_smoothing": "[0, 1)", "gradient_penalty": "[0, inf)"}

    order: int = -3
    above: float = 0.0
    adversarial: bool = False
    label_smoothing: float = 0.0
    mixup: bool = False
    gradient_penalty: float = 0.0
    network: MLPEnsemble = field(default_factory=lambda: MLPEnsemble(members=1))

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)
        if self.network.pair and self._compares():
            raise MethodError(
                f"{path}.network.pair of SuccessClassifier is True, and mixup and gradient_penalty compare states of both tasks. "
                "Leave the pair out: a single network sees the number of the task."
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"step_reward", "label.source"})

    def model_network(self) -> ModelNetwork:
        return self.network

    def prepare(self, batch: Batch) -> Tensor:
        """What each decision counts ``[N, T]``, so that both kinds count the same; where states are compared with one another, all
        that comes of it (`_Compared`)."""
        done, other = self._kinds(batch)
        counts = [kind.sum().clamp_min(1) for kind in (done, other)]
        weight = 0.5 * batch.sampled.sum() * (done / counts[0] + other / counts[1])
        return self._compared(batch, done, other, weight) if self._compares() else weight

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets, prepared = networks(batch), batch.prepared[self]
        done, other = self._kinds(batch)
        seen = nets.value(nets.scope, "next")[0, ..., 0]
        notes = self._notes(batch, seen.detach(), done, other)
        if not self._compares():
            up, down = self._pulls(done, prepared)
            return up * softplus(-seen) + down * softplus(seen), notes
        found = _Compared.of(prepared, nets.column(nets.scope, "state", at="next"))
        logit = nets.column(nets.scope, "of_state", at="next", state=found.mixed)[0, ..., 0] if self.mixup else seen
        loss = found.up * softplus(-logit) + found.down * softplus(logit)
        if self.gradient_penalty:
            slope = nets.column(nets.scope, "slope", at="next", state=found.between)
            norm = (slope.square() + FLOOR).flatten(2).sum(-1).sqrt()
            loss = loss + self.gradient_penalty * found.penalised * (norm - 1).square()
            notes["slope"] = norm.detach() * found.penalised
        return loss, notes

    def _compares(self) -> bool:
        return self.mixup or self.gradient_penalty > 0

    def _pulls(self, done: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """How much each decision is pulled to being done, and to not being done."""
        label = (1 - self.label_smoothing) * done + 0.5 * self.label_smoothing
        return weight * label, weight * (1 - label)

    def _compared(self, batch: Batch, done: Tensor, other: Tensor, weight: Tensor) -> Tensor:
        nets = networks(batch)
        state = nets.column(nets.scope, "state", at="next").detach().flatten(2)
        (up, down), mixed, known = self._pulls(done, weight), state, done + other
        if self.mixup:
            share = nets.uniform(weight.new_empty(1), "mixup/share")
            partner = _partners(known, nets.uniform(weight, "mixup/order"))
            up, down = (share * pull + (1 - share) * _at(pull, partner) for pull in (up, down))
            mixed = share * state + (1 - share) * _at(state, partner)
        share = nets.uniform(weight, "penalty/share").unsqueeze(-1)
        between = share * mixed + (1 - share) * _at(mixed, _opposites(done, other))
        both = (done.sum() > 0) & (other.sum() > 0)  # nothing lies between one kind and none
        penalised = known * both * (batch.sampled.sum() / known.sum().clamp_min(1))
        return torch.cat([torch.stack([up, down, penalised], -1), mixed, between], -1)

    def _notes(self, batch: Batch, logit: Tensor, done: Tensor, other: Tensor) -> Notes:
        said = (logit > 0).to(logit.dtype)
        own, paid = batch.sampled * (1 - _shown(batch)), (self._reward(batch) > self.above).to(logit.dtype)
        return {
            "accuracy": _of_both(torch.where(done > 0, said, 1 - said), done, other, batch.sampled),
            "agreement": _of_both((said == paid).to(logit.dtype), own * paid, own * (1 - paid), batch.sampled),
        }

    def _kinds(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Ones ``[N, T]`` where the task is done, and where it is not; zeros in both where nobody knows."""
        shown = _shown(batch) * batch.sampled
        done = shown * (self._reward(batch) > self.above)
        return done, batch.sampled - done if self.adversarial else shown - done

    def _reward(self, batch: Batch) -> Tensor:
        """What the environment paid, or demonstrations say that it did."""
        if batch.step_reward is None:
            raise MethodError("demonstrations say by their rewards when a task is done, and these rows have none.")
        return batch.signal.get(RECORDED, batch.step_reward)


class _Compared(NamedTuple):
    """What `SuccessClassifier` prepares where states are compared with one another, column by column."""

    up: Tensor
    """How much a decision is pulled to being done ``[N, T]``."""
    down: Tensor
    penalised: Tensor
    """What its slope counts: one on average."""
    mixed: Tensor
    """Where it is pulled ``[N, T, ...]``, and below where the slope is looked at."""
    between: Tensor

    @classmethod
    def of(cls, prepared: Tensor, like: Tensor) -> _Compared:
        mixed, between = prepared[..., 3:].chunk(2, -1)
        up, down, penalised = prepared[..., :3].unbind(-1)
        return cls(up, down, penalised, mixed.reshape(like.shape), between.reshape(like.shape))


def _shown(batch: Batch) -> Tensor:
    """Ones ``[N, 1]`` for demonstrations."""
    return (batch.label["source"] == Source.DEMONSTRATED).to(batch.sampled.dtype).unsqueeze(1)


def _at(column: Tensor, place: Tensor) -> Tensor:
    """The column ``[N, T, ...]`` at other decisions; they are numbered row by row."""
    return column.flatten(0, 1)[place].unflatten(0, column.shape[:2])


def _ranks(kind: Tensor) -> Tensor:
    """The how manyth of its kind each decision is, from 0."""
    return (kind.cumsum(0).long() - 1).clamp_min(0)


def _partners(known: Tensor, chance: Tensor) -> Tensor:
    """For each decision the number of another known one: a random order of them all. Unknown ones stay alone."""
    known, chance = known.flatten(), chance.flatten()
    order = (chance + 2 * (1 - known)).argsort()  # the known ones come first
    return torch.where(known > 0, order[_ranks(known)], torch.arange(len(known), device=known.device))


def _opposites(done: Tensor, other: Tensor) -> Tensor:
    """For each decision the number of one of the other kind, in turn, from the beginning again where there are fewer of them."""
    places = []
    for own, theirs in ((done.flatten(), other.flatten()), (other.flatten(), done.flatten())):
        in_turn = (1 - theirs).argsort(stable=True)
        places.append(in_turn[_ranks(own) % theirs.sum().long().clamp_min(1)])
    return torch.where(done.flatten() > 0, places[0], places[1])


def _of_both(right: Tensor, done: Tensor, other: Tensor, sampled: Tensor) -> Tensor:
    """A column whose mean over all decisions is the share of right ones: of both kinds the mean of the two, else that of one."""
    counts = [kind.sum() for kind in (done, other)]
    there = sum((count > 0).to(right.dtype) for count in counts)
    weight = done / counts[0].clamp_min(1) + other / counts[1].clamp_min(1)
    return right * weight * sampled.sum() / torch.as_tensor(there).clamp_min(1)


__all__ = ["RECORDED", "SuccessClassifier"]
