"""Optimiser steps computed by hand in float64: learning rate, gradient clipping, AdamW, and the learning rate of a model's head."""

from __future__ import annotations

import math

import pytest
import torch
from tables import SAMPLES, table_learner
from torch import Tensor

from upslope.learners.metrics import MetricSums
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.advantage import GAE
from upslope.objective.aggregate import TokenMean
from upslope.objective.models.value import ValueFunction
from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate import Unclipped
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Method, Paper

STEPS = (1, 2, 3, 4)
# lr 0.08, warm-up 2 of 6 steps, then linearly down to a tenth: half, all, all, 0.1 + 0.9 * 3/4 = 0.775.
RATES = (0.04, 0.08, 0.08, 0.062)
BETA1, BETA2, EPS, DECAY = 0.9, 0.95, 0.02, 0.3
OPTIMIZER = {
    "lr": 0.08, "steps": 6, "warmup": 2, "schedule": "linear", "lr_floor": 0.1, "adam_beta2": BETA2, "adam_eps": EPS,
    "weight_decay": DECAY, "passes": 1, "updates_per_step": 1,
}  # fmt: skip


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, algorithm 2), one list of numbers at a time."""

    def __init__(self, weights: list[float]):
        self.weights, self.first, self.second, self.count = weights, [0.0] * len(weights), [0.0] * len(weights), 0

    def step(self, grads: list[float], lr: float) -> None:
        self.count += 1
        for place, grad in enumerate(grads):
            self.first[place] = BETA1 * self.first[place] + (1 - BETA1) * grad
            self.second[place] = BETA2 * self.second[place] + (1 - BETA2) * grad * grad
            mean = self.first[place] / (1 - BETA1**self.count)
            square = self.second[place] / (1 - BETA2**self.count)
            self.weights[place] -= lr * DECAY * self.weights[place] + lr * mean / (math.sqrt(square) + EPS)


plain = Method(
    name="plain", paper=Paper("a test", year=2026), advantage=GAE(gamma=1.0, lam=1.0),
    ratio=TokenRatio(), surrogate=Unclipped(), aggregate=TokenMean(),
    models={"value": ValueFunction(weight=0.5, lr_scale=0.25)},
)  # fmt: skip


def test_the_first_step_on_rows_in_numbers():
    """With a share c of right arms the gradient is c (1/3, -2/3, 1/3) for the logits and -c/2 for the value, of length 0.957427 c.

    Clipped to 0.1 that is (0.034816, -0.069631, 0.034816) and -0.052223 whatever c is. Adam's first step is lr g / (|g| + eps):
    0.04 * 0.034816 / 0.054816 = 0.025405, 0.04 * 0.069631 / 0.089631 = 0.031075, 0.01 * 0.052223 / 0.072223 = 0.0072308.
    """
    learner = table_learner(plain, grad_clip=0.1, **OPTIMIZER)
    learner.step(1)
    assert learner.policy.moved.flatten().tolist() == pytest.approx([-0.025405, 0.031075, -0.025405], rel=1e-4)
    assert learner.policy.heads["value"].item() == pytest.approx(0.0072308, rel=1e-4)


@pytest.mark.parametrize("limit", [0.1, 0.0, 10.0])
def test_steps_on_rows_by_hand(limit: float):
    """Three arms with logits w and a value v; arm 1 earns 1.

    With shares c of the arms among the samples and p = softmax(w), the loss is -mean(A log p) + mean((v - R)^2) / 4, so that
    dL/dw_a = p_a mean(A) - (1[a = 1] c_1 - v c_a) and dL/dv = (v - c_1) / 2, where A = R - v is held fixed.
    """
    learner = table_learner(plain, grad_clip=limit, **OPTIMIZER)
    policy = learner.policy
    logits, value = AdamW([0.0, 0.0, 0.0]), AdamW([0.0])
    for step, lr in zip(STEPS, RATES, strict=True):
        metrics = learner.step(step)
        taken = learner.last.action.flatten().tolist()
        share = [taken.count(arm) / SAMPLES for arm in range(3)]
        assert 0 < share[1] < 1, "both right and wrong arms, or the step shows little"
        total = sum(map(math.exp, logits.weights))
        chance = [math.exp(weight) / total for weight in logits.weights]
        (v,) = value.weights
        grads = [chance[arm] * (share[1] - v) - ((arm == 1) * share[1] - v * share[arm]) for arm in range(3)]
        grads.append((v - share[1]) / 2)
        norm = math.sqrt(sum(grad * grad for grad in grads))
        if limit:
            grads = [grad * min(1.0, limit / norm) for grad in grads]
        logits.step(grads[:3], lr)
        value.step(grads[3:], 0.25 * lr)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert metrics["lr"] == pytest.approx(lr)
        assert policy.moved.flatten().tolist() == pytest.approx(logits.weights, rel=1e-4, abs=1e-6)
        assert policy.heads["value"].flatten().tolist() == pytest.approx(value.weights, rel=1e-4, abs=1e-6)
        if limit == 0.1:
            assert norm > 1.5 * limit, "a gradient that is not clipped would hide the clip"


def control(limit: float) -> PolicyGradient:
    sizes = Settings(envs=2, horizon=16, eval_problems=1, threads=1, watch_kl=False, grad_clip=limit, **OPTIMIZER)
    method = find("ppo").with_knobs({"models.value.lr_scale": 0.25})
    made = set_up(method, "gym:CartPole-v1", "tiny", sizes)
    return PolicyGradient(made.method, made.policy, made.rollout, made.settings)


def vector(parameters: list[Tensor]) -> Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in parameters])


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_steps_on_decisions_by_hand(limit: float):
    """The weights move by AdamW along the gradient that is left on them, whose length is the reported one or the limit."""
    learner = control(limit)
    names = ("policy", "value")
    by_hand = {name: AdamW(vector(learner.policy.trainable()[name]).tolist()) for name in names}
    for step, lr in zip(STEPS, RATES, strict=True):
        metrics = learner.step(step)
        grads = {name: vector([parameter.grad for parameter in learner.policy.trainable()[name]]) for name in names}
        length = torch.cat(list(grads.values())).norm().item()
        assert metrics["updates"] == 1 and metrics["lr"] == pytest.approx(lr)
        assert length == pytest.approx(min(metrics["grad_norm"], limit), rel=1e-3)
        for name, scale in zip(names, (1.0, 0.25), strict=True):
            by_hand[name].step(grads[name].tolist(), lr * scale)
            found = vector(learner.policy.trainable()[name])
            expected = torch.tensor(by_hand[name].weights, dtype=torch.float64)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("limit", [1e-6, 2e-6, 0.5])
def test_a_gradient_is_clipped_as_torch_clips_it(limit: float):
    """At a norm of 2e-6 the small number in torch's divisor counts: 1e-6 / (2e-6 + 1e-6) is a third."""
    step = table_learner(plain, grad_clip=limit, **OPTIMIZER).optimizer_step
    first, *others = step.parameters()
    for parameter in (first, *others):
        parameter.grad = torch.zeros_like(parameter)
    first.grad.flatten()[0] = 2e-6
    sums = MetricSums()
    assert step.apply(2e-6, sums)
    assert first.grad.flatten()[0].item() == pytest.approx(2e-6 / 3 if limit == 1e-6 else 2e-6, rel=1e-5)
    assert sums.means() == {"skipped_updates": 0.0, "grad_norm": 2e-6}
    assert not step.apply(math.inf, sums)
    assert sums.means() == {"skipped_updates": 0.5, "grad_norm": 2e-6} and step.skipped == 1
