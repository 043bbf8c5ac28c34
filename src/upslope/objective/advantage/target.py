"""Where a policy should end: target distributions, and how far it is from them (f-DPG, GDC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage, State, Stateful
from upslope.objective.functional.divergences import UNBOUNDED, Divergence, generator_slope
from upslope.objective.memory.table import empty, looked_up, merged
from upslope.types import Batch, Metrics, Part

RULED_OUT = -50.0
"""What an answer that the target rules out counts, as a logarithm, where its exact value would make a divergence infinite."""


class Target(Part):
    """A distribution over answers: a base model's, each answer times a weight. It need not be normalised."""

    scope = "step"

    def __call__(self, batch: Batch) -> Tensor:
        """Logarithm of each answer's weight ``[N]``; minus infinity rules it out, NaN says that it is not known yet."""
        raise NotImplementedError


@dataclass(frozen=True)
class RewardTarget(Target):
    r"""The optimum of KL-regularized reinforcement learning: :math:`P(y) = a(y)\,e^{R(y)/\beta}`.

    Fields:
        beta: larger stays nearer to the base model; near 0 only the best answers are left.
    """

    ranges: ClassVar = {"beta": "(0, inf)"}

    beta: float = 0.1

    def __call__(self, batch: Batch) -> Tensor:
        return batch.reward.double() / self.beta


@dataclass(frozen=True)
class PointwiseTarget(Target):
    r"""The base model, given that a constraint holds: :math:`P(y) = a(y)\,b(y)`, where b is 1 if the reward is above a number.

    Fields:
        above: what the reward must exceed.
    """

    judges_by: ClassVar = "above"

    above: float = 0.5

    def __call__(self, batch: Batch) -> Tensor:
        return torch.where(batch.reward.double() > self.above, 0.0, -torch.inf)


@dataclass(frozen=True)
class MomentTarget(Target, Stateful):
    r"""The distribution nearest to the base model in which features have given means (GDC).

    .. math::  P(y) = a(y)\,\exp\sum_i \lambda_i \phi_i(y), \qquad \mathbb E_p\,\phi = \mu

    Features are named parts of the reward, as a step reports them (``reward_NAME``). Until ``samples`` answers are there nothing is
    learned, so that all of them are the base model's own; then :math:`\lambda` is fitted to them once, for the whole run.

    Fields:
        features: names of parts of the reward. ``"task"`` is what the task pays.
        moments: the mean that each should have.
        samples: answers from which the coefficients are fitted. Rare features need more.
    """

    ranges: ClassVar = {"samples": "[1, inf)"}

    features: tuple[str, ...] = ("task",)
    moments: tuple[float, ...] = (0.5,)
    samples: int = 512

    def __post_init__(self) -> None:
        if not (isinstance(self.features, tuple) and isinstance(self.moments, tuple) and len(self.features) == len(self.moments)):
            raise MethodError(f"MomentTarget has the features {self.features!r} and the moments {self.moments!r}; give each "
                              "feature one moment.")  # fmt: skip

    def init(self) -> State:
        width = len(self.features)
        return {"seen": torch.zeros(0, width, dtype=torch.float64), "coefficients": torch.zeros(0, dtype=torch.float64)}

    def __call__(self, batch: Batch) -> Tensor:
        features, coefficients = self._features(batch), batch.state[self]["coefficients"].to(batch.reward.device)
        if not len(coefficients):
            return torch.full_like(batch.reward, torch.nan, dtype=torch.float64)
        return features @ coefficients

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        if len(state["coefficients"]):
            return state
        seen = torch.cat([state["seen"], self._features(batch)[batch.fresh()].cpu()])
        if len(seen) < self.samples:
            return {**state, "seen": seen}
        return {"seen": seen[:0], "coefficients": fitted(seen, torch.tensor(self.moments, dtype=torch.float64), self.features)}

    def _features(self, batch: Batch) -> Tensor:
        if missing := [name for name in self.features if name not in batch.components]:
            found = ", ".join(batch.components) or "none"
            raise MethodError(f"MomentTarget weighs the part {missing[0]!r} of the reward; the parts of this one are: {found}.")
        return torch.stack([batch.components[name].double() for name in self.features], 1)


def fitted(features: Tensor, moments: Tensor, names: tuple[str, ...], rounds: int = 200) -> Tensor:
    """Coefficients with which these samples, weighed by their exponential, have these means.

    They minimise the convex log-partition minus moments times coefficients; a step of Newton's goes at most 1 far.
    """
    coefficients = torch.zeros(features.shape[1], dtype=torch.float64)
    for _ in range(rounds):
        weight = (features @ coefficients).softmax(0)
        gap = weight @ features - moments
        if bool(gap.abs().max() < 1e-9):
            return coefficients
        centred = features - weight @ features
        curvature = (centred * weight.unsqueeze(1)).T @ centred
        step = torch.linalg.lstsq(curvature + 1e-12 * torch.eye(len(moments), dtype=torch.float64), gap.unsqueeze(1)).solution[:, 0]
        coefficients = coefficients - step / step.norm().clamp_min(1)
    worst = int(gap.abs().argmax())
    low, high = float(features[:, worst].min()), float(features[:, worst].max())
    raise MethodError(
        f"MomentTarget cannot give {names[worst]!r} a mean of {float(moments[worst]):g}: of {len(features)} answers of the base "
        f"model its values lie between {low:g} and {high:g}. Ask for another moment (advantage.target.moments), or fit it to more "
        "answers (advantage.target.samples)."
    )


class Distance(NamedTuple):
    """How far answers are from the target, each ``[N]`` in float64, NaN where nothing is known."""

    log_importance: Tensor
    """Of the target's unnormalised weight over the probability with which the answer was drawn."""
    pseudo_reward: Tensor
    """Minus f'(t)."""


@dataclass(frozen=True)
class TargetDivergence(Advantage, Stateful):
    r"""How much an answer brings the policy nearer to a target distribution p: the pseudo-reward of an f-divergence (f-DPG).

    .. math::  A = -f'(t) - \bar b, \qquad t = \frac{\pi(y)}{p(y)} = \frac{\pi(y)\,Z}{P(y)}, \qquad
               Z = \text{running mean of } \frac{P(y)}{q(y)}

    :math:`P(y)` is the reference's probability times the target's weight, q whoever sampled, and :math:`\bar b` the mean of the
    last pseudo-rewards, those of this step not among them. With this advantage the policy gradient is that of
    :math:`D_f(\pi \| p)`, and zero where the policy is the target. t is that of the policy before the step's first update.

    Z and :math:`\bar b` are states of the method. Answers of this step count in Z already. Where no answer of weight has been seen
    (Z = 0) nothing is learned.

    Fields:
        divergence: ``"forward-kl"`` KL(p||π) covers all that the target allows and keeps most entropy; ``"reverse-kl"`` KL(π||p) is
            KL-regularized reinforcement learning, fast and narrow; ``"js"`` lies between; ``"tv"`` is total variation;
            ``"forward-chi2"`` χ²(p||π) and ``"reverse-chi2"`` χ²(π||p) are the steeper kin of the two KLs.
        target: where the policy should end.
        normalizer: of what Z is: each ``"task"`` has its own, or all of the ``"run"`` share one, as for a single prompt.
        window: answers over which the baseline is taken; 0 is none.
        reference: the base model a, by name.
    """

    ranges: ClassVar = {"window": "[0, inf)"}

    divergence: Divergence = "js"
    target: Target = RewardTarget()
    normalizer: Literal["task", "run"] = "task"
    window: int = 1024
    reference: str = "start"

    def needs(self) -> frozenset[str]:
        return frozenset({f"reference.{self.reference}.logp", "proximal.logp", "group"})  # Z is of a group's answers, at least

    def init(self) -> State:
        return {"normalizer": empty("log_sum", "count"), "last": torch.zeros(0, dtype=torch.float64)}

    def __call__(self, batch: Batch) -> Tensor:
        pseudo, last = self._distance(batch).pseudo_reward, batch.state[self]["last"]
        baseline = float(last.mean()) if len(last) else 0.0
        return batch.per_decision(torch.where(pseudo.isnan(), 0.0, pseudo - baseline).to(batch.sampled.dtype))

    def signals(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        return dict(self._distance(batch)._asdict())

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        if "pseudo_reward" not in batch.signal:
            return state
        importance, pseudo = batch.signal["log_importance"].cpu(), batch.signal["pseudo_reward"].cpu()
        table, known = state["normalizer"], ~importance.isnan()
        if bool(known.any()):
            names, log_sum, count = _log_sums(self._keys(batch).cpu()[known], importance[known])
            before, _ = looked_up(table, names, {"log_sum": -torch.inf, "count": 0.0})
            columns = {"log_sum": torch.logaddexp(before["log_sum"], log_sum), "count": before["count"] + count}
            table = merged(table, names, columns)
        last = torch.cat([state["last"], pseudo[~pseudo.isnan()]])
        return {"normalizer": table, "last": last[max(len(last) - self.window, 0) :]}

    def _keys(self, batch: Batch) -> Tensor:
        return batch.task if self.normalizer == "task" else torch.zeros_like(batch.task)

    def _distance(self, batch: Batch) -> Distance:
        if batch.proximal is None or self.reference not in batch.reference:
            found = ", ".join(batch.reference) or "no reference"
            raise MethodError(f"TargetDivergence compares with {self.reference!r} before the step; this batch has {found}.")
        base, weight = batch.reference[self.reference].logp, self.target(batch)
        if self.divergence in UNBOUNDED:
            weight = weight.clamp_min(RULED_OUT)
        # Who wrote an answer that nobody sampled is not known, and so neither is its importance.
        drawn = (batch.lengths() > 0) & ~(batch.behavior.logp.isnan() & (batch.sampled > 0)).any(1)
        importance = torch.where(drawn, weight - _summed(batch, batch.behavior.logp - base), torch.nan)
        log_z = self._log_normalizer(batch, importance)
        log_t = _summed(batch, batch.proximal.logp - base) - weight + log_z
        usable = drawn & ~weight.isnan() & (log_z > -torch.inf)
        return Distance(importance, torch.where(usable, -generator_slope(self.divergence, log_t), torch.nan))

    def _log_normalizer(self, batch: Batch, importance: Tensor) -> Tensor:
        """Logarithm of Z for each row ``[N]``: of all that was drawn before, and of this step's answers."""
        keys, known = self._keys(batch), ~importance.isnan()
        before, _ = looked_up(batch.state[self]["normalizer"], keys, {"log_sum": -torch.inf, "count": 0.0})
        names, index = torch.unique(keys, return_inverse=True)
        log_sum = torch.full((len(names),), -torch.inf, dtype=torch.float64, device=keys.device)
        count = torch.zeros_like(log_sum)
        if bool(known.any()):
            here, log_sums, counts = _log_sums(index[known], importance[known])
            log_sum[here], count[here] = log_sums, counts
        total = before["count"] + count[index]
        return torch.logaddexp(before["log_sum"], log_sum[index]) - total.clamp_min(1).log()


def _summed(batch: Batch, gap: Tensor) -> Tensor:
    """A log-ratio of each answer ``[N]``, summed over its tokens; what is not finite counts as not moved."""
    return torch.where(gap.isfinite() & (batch.sampled > 0), gap, 0.0).double().sum(1)


def _log_sums(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys, sorted and once each; of each the logarithm of the sum of exponentials of its values, and how many they are."""
    names, index = torch.unique(keys, return_inverse=True)
    blank = torch.full((len(names),), -torch.inf, dtype=values.dtype, device=values.device)
    top = blank.scatter_reduce(0, index, values, "amax")
    top = torch.where(top.isfinite(), top, 0.0)
    total = torch.zeros_like(blank).index_add(0, index, (values - top[index]).exp())
    return names, top + total.log(), torch.zeros_like(blank).index_add(0, index, torch.ones_like(values))
