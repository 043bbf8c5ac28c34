"""Small parts by hand: those that remember or steer, and the formulas of single slots."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GAE, MovingBaseline
from upslope.objective.aggregate import ConstantLength
from upslope.objective.controller import AdaptiveKL, TargetKL
from upslope.objective.estimator import annotate, begin_update, bind, method_loss, stateful
from upslope.objective.models.value import ValueFunction
from upslope.objective.ratio import EntropyMix, TokenRatio
from upslope.objective.regularize import kl_estimate
from upslope.objective.reward import OverlongPenalty, StepKL
from upslope.objective.shape import Whiten
from upslope.objective.surrogate import ClippedWeight, PessimisticClip, Unclipped
from upslope.objective.weight import TopEntropy
from upslope.types import Batch, View

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))
PLAIN = grpo.derive(regularize=None)
"""GRPO without its KL term."""


# -- parts that remember or steer ------------------------------------------------------------------------------------------


def test_moving_baseline_reads_its_state_and_writes_it_after_the_step():
    method = find("reinforce").derive(advantage=MovingBaseline(decay=0.9))
    assert list(stateful(method)) == ["advantage"]
    batch, part = random_batch(0).replace(reward=torch.full((12,), 2.0).double()), method.advantage
    bound = bind(method, {"advantage": {"baseline": 0.5}}, batch)
    assert torch.equal(annotate(method, bound).advantage, 1.5 * batch.sampled)
    assert part.init() == {"baseline": 0.0}
    assert part.update({"baseline": 0.5}, bound, {}) == {"baseline": pytest.approx(0.9 * 0.5 + 0.1 * 2.0)}


def test_target_kl_ends_the_passes():
    part = TargetKL(limit=0.02)
    assert part.ends_passes({"kl_proximal": 0.021}) and not part.ends_passes({"kl_proximal": 0.019}) and not part.ends_passes({})
    assert part.knobs(part.init(), 0.0) == {}


@pytest.mark.parametrize(("divergence", "error"), [(0.11, 0.1), (0.5, 0.2), (0.001, -0.2), (0.1, 0.0)])
def test_adaptive_kl_moves_its_weight_towards_the_target(divergence: float, error: float):
    part, batch = AdaptiveKL(target=0.1, start=0.05, horizon=100), random_batch(0)
    state = part.update(part.init(), batch, {"kl_start": divergence})
    assert state == {"weight": pytest.approx(0.05 * (1 + error * 12 / 100))}
    steered = ppo.derive(reward=StepKL(), controller=part)
    assert steered.with_knobs(part.knobs(state, 0.0)).reward[0].weight == state["weight"]


# -- small parts -----------------------------------------------------------------------------------------------------------


def test_gae_special_cases(ragged_batch: Batch):
    batch = ragged_batch.replace(step_reward=None)
    zero = replace_view(batch, "proximal", value=torch.zeros_like(batch.sampled)).replace(bootstrap=None)
    torch.testing.assert_close(GAE(gamma=1.0, lam=1.0)(zero), batch.per_decision(batch.reward))
    # A row that ended by itself: lambda 1 is the return minus V, lambda 0 the one-step error.
    value = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    row = batch.take_rows(torch.tensor([0])).replace(
        sampled=torch.ones(1, 3).double(), ended=torch.tensor([[0, 0, 1]]), bootstrap=None, proximal=View(value, value=value)
    )
    discounted = row.reward * torch.tensor([0.81, 0.9, 1.0], dtype=torch.float64)
    torch.testing.assert_close(GAE(gamma=0.9, lam=1.0)(row), discounted - value, rtol=1e-6, atol=1e-6)
    errors = torch.stack([0.9 * value[0, 1] - value[0, 0], 0.9 * value[0, 2] - value[0, 1], row.reward[0] - value[0, 2]])
    torch.testing.assert_close(GAE(gamma=0.9, lam=0.0)(row)[0], errors)


def test_the_pessimistic_clip_is_a_hinge(ragged_batch: Batch):
    """-min(rA, clip(r)A) = |A| max(0, sgn(A) ((1 + eps sgn A) - r)) - A - eps |A|."""
    batch = begin_update(PLAIN, annotate(PLAIN, ragged_batch))
    (branch,), advantage, sign = TokenRatio()(batch), batch.advantage, batch.advantage.sign()
    loss, _ = PessimisticClip(0.2, 0.2)(batch, (branch,))
    hinge = advantage.abs() * (sign * (1 + 0.2 * sign - branch.value)).clamp_min(0) - advantage - 0.2 * advantage.abs()
    torch.testing.assert_close(loss * batch.sampled, hinge * batch.sampled)


def test_infinite_bounds_are_no_clip(ragged_batch: Batch):
    wide = PLAIN.derive(surrogate=PessimisticClip(math.inf, math.inf))
    assert_same(gradient(wide, ragged_batch), gradient(PLAIN.derive(surrogate=Unclipped()), ragged_batch))


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)), ("k3+", math.exp(-0.5) - 0.5, 0.5)],
)
def test_kl_estimates_by_hand(estimator: str, value: float, slope: float):
    """log pi = -1, log pi_ref = -1.5: x = -0.5, k3 = e^x - x - 1. Slopes are in log pi; k3+ has k3's value and k2's slope."""
    logp = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logp, torch.tensor(-1.5).double(), estimator)
    assert estimate.item() == pytest.approx(value) and torch.autograd.grad(estimate, logp)[0].item() == pytest.approx(slope)


@pytest.mark.parametrize(("value", "loss"), [(0.4, 0.64), (1.2, 0.49), (-2.0, 10.24), (0.9, 0.49), (2.0, 0.64)])
def test_value_clipping_by_hand(value: float, loss: float):
    """V_old = 0, clip 0.5, return 1.2: V = 1.2 is right, but a step may only reach 0.5, so it costs 0.7^2 all the same."""
    view = View(torch.zeros(1, 1), value=torch.zeros(1, 1))
    batch = random_batch(0, groups=1, samples=1, positions=1, ragged=False)
    batch = batch.replace(
        current=View(view.logp, value=torch.tensor([[value]])), proximal=view, signal={"returns": torch.tensor([[1.2]])}
    )
    assert ValueFunction(weight=0.5, clip=0.5)(batch).item() == pytest.approx(0.25 * loss)
    assert ValueFunction(weight=0.5)(batch).item() == pytest.approx(0.25 * (value - 1.2) ** 2)


def test_overlong_penalty_by_hand():
    """Limit 10, buffer a fifth of it: free up to 8 tokens, minus the penalty at 10, linear between."""
    sampled = (torch.arange(10) < torch.tensor([[1], [7], [8], [9], [10]])).double()
    batch = random_batch(0, groups=1, samples=5, positions=10).replace(sampled=sampled, reward=torch.ones(5).double())
    found = OverlongPenalty(penalty=2.0)(batch)
    assert found.reward.tolist() == pytest.approx([1, 1, 1, 0, -1])
    assert found.components["overlong"].tolist() == pytest.approx([0, 0, 0, -1, -2]) and "task" in found.components
    with pytest.raises(MethodError, match=r"set reward\.limit"):
        OverlongPenalty()(batch.replace(horizon=0))
    with pytest.raises(MethodError, match="buffer is 4096"):
        OverlongPenalty(buffer=4096)


def test_step_kl_by_hand(ragged_batch: Batch):
    """Each decision pays 0.1 (log pi - log pi_ref), and nobody else does."""
    distance = (ragged_batch.proximal.logp - ragged_batch.reference["start"].logp) * ragged_batch.sampled
    paid = StepKL(weight=0.1)(ragged_batch).step_reward - ragged_batch.step_reward
    torch.testing.assert_close(paid, -0.1 * distance)
    assert StepKL(weight=0.0)(ragged_batch) is ragged_batch and not StepKL(weight=0.0).needs()


def test_whitening_by_hand():
    batch = random_batch(0, groups=1, samples=1, positions=4, ragged=False)
    batch = batch.replace(sampled=torch.tensor([[1.0, 1, 0, 1]]).double(), advantage=torch.tensor([[1.0, 2, 50, 3]]).double())
    assert Whiten(eps=0.0)(batch).tolist() == [[-1, 0, 0, 1]]
    assert not Whiten()(batch.replace(advantage=0.1 * batch.sampled)).any()
    alone = batch.replace(sampled=torch.tensor([[0.0, 1, 0, 0]]).double())
    assert torch.equal(Whiten()(alone), alone.advantage)


def test_cispo_by_hand(ragged_batch: Batch):
    """Ratio 2, upper bound 1.5: loss -1.5 A log pi, and the gradient goes on."""
    batch = replace_view(ragged_batch, "current", logp=(ragged_batch.proximal.logp + math.log(2)).requires_grad_())
    method = PLAIN.derive(surrogate=ClippedWeight(high=0.5))
    advantage = annotate(method, batch).advantage
    expected = -1.5 * advantage * begin_update(method, annotate(method, batch)).share
    torch.testing.assert_close(gradient(method, batch).logp, expected)
    torch.testing.assert_close(method_loss(method, batch), (expected * batch.current.logp).sum())


def test_parts_without_what_they_need_say_so(ragged_batch: Batch):
    for make, says in (
        (lambda: EntropyMix(over="batch", source="current"), "over the batch"),
        (lambda: EntropyMix(direction=0), "direction is 0"),
        (lambda: TopEntropy(fraction=0.0), "fraction is 0"),
        (lambda: ConstantLength()(ragged_batch.replace(horizon=0)), r"set aggregate\.length"),
    ):
        with pytest.raises(MethodError, match=says):
            make()
