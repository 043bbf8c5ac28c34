"""f-DPG: the exact gradient of six divergences, zero at the target, REINFORCE on a regularized reward, targets of three kinds."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners.curricula import with_advantage
from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.advantage.target import MomentTarget, PointwiseTarget, RewardTarget, Target, TargetDivergence, fitted
from upslope.objective.estimator import annotate, begin_update, bind, decision_losses, method_loss
from upslope.objective.functional.divergences import DIVERGENCES, generator_slope
from upslope.testing.batches import first_states, replace_view
from upslope.types import Batch, Method, Trajectories, View

f_dpg, reinforce = find("f-dpg"), find("reinforce")
each_divergence = pytest.mark.parametrize("divergence", DIVERGENCES)


HALF = RewardTarget(0.5)


def towards(divergence: str, target: Target = HALF, window: int = 0, normalizer: str = "run") -> Method:
    return f_dpg.derive(advantage=TargetDivergence(divergence, target, normalizer, window))


def remembering(method: Method, batch: Batch) -> Batch:
    return bind(method, first_states(method), batch)


# -- identity --------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "f-dpg")
def test_with_its_changes_off_it_is_reinforce(ragged_batch: Batch):
    plain = f_dpg.derive(advantage=reinforce.advantage, ratio=reinforce.ratio, surrogate=reinforce.surrogate)
    assert_same(gradient(plain, ragged_batch), gradient(reinforce, ragged_batch), exact=True)


@pytest.mark.checks("identity", "f-dpg")
def test_reverse_kl_to_a_reward_target_is_reinforce_on_the_regularized_reward():
    """-f'(t) = R/β - log π/a - log Z - 1: REINFORCE with R - β log π/a, over β, but for a constant that the baseline takes."""
    batch, beta = at_proximal(random_batch(3, groups=4, samples=4)), 0.3
    batch = batch.replace(behavior=batch.proximal)
    method = towards("reverse-kl", RewardTarget(beta))
    constant = float(annotate(method, remembering(method, batch)).signal["pseudo_reward"].mean())
    moved = ((batch.proximal.logp - batch.reference["start"].logp) * batch.sampled).sum(1)
    paid = batch.reward - beta * moved
    offset = float(paid.mean()) / beta - constant
    pays = reinforce.derive(advantage=RawReward())
    ours, theirs = gradient(method, batch), gradient(pays, batch.replace(reward=paid / beta - offset))
    torch.testing.assert_close(ours.logp, theirs.logp)


@pytest.mark.checks("identity", "f-dpg")
def test_forward_kl_without_a_baseline_has_the_weights_of_dpg():
    """(π/q) · P/(π Z) = P/(Z q), whatever the policy is: distributional policy gradients."""
    batch = at_proximal(random_batch(5, groups=3, samples=4))
    seen = annotate(towards("forward-kl"), remembering(towards("forward-kl"), batch))
    importance = seen.signal["log_importance"].exp()
    ours = gradient(towards("forward-kl"), batch)
    wanted = -(importance / importance.mean()).unsqueeze(1) * batch.sampled / batch.rows
    torch.testing.assert_close(ours.logp, wanted)


# -- the exact gradient ----------------------------------------------------------------------------------------------------


def every_answer(policy: ExactPolicy, base: ExactPolicy, reward: Tensor) -> Batch:
    """Each answer once, as if all had been drawn alike: means over the rows with π/q are then expectations."""
    batch = policy.batch(torch.arange(len(reward)), reward, samples=len(reward), reference=base)
    lengths = batch.sampled.sum(1, keepdim=True)
    alike = -math.log(len(reward)) / lengths * batch.sampled
    return batch.replace(behavior=View(alike), components={"task": reward[torch.arange(len(reward))]})


DISTANCES = {
    "forward-kl": lambda t: -t.log(),
    "reverse-kl": lambda t: t * t.log(),
    "js": lambda t: t * t.log() - (t + 1) * ((t + 1) / 2).log(),
    "tv": lambda t: (1 - t).abs() / 2,
    "forward-chi2": lambda t: 1 / t - 1,
    "reverse-chi2": lambda t: t.square() - 1,
}
"""The generators f: D = E_p f(π/p)."""


@each_divergence
@pytest.mark.checks("oracle", "f-dpg", by="autograd through each divergence of all answers")
def test_the_gradient_is_that_of_the_divergence(divergence: str):
    policy, base = ExactPolicy.random(1), ExactPolicy.random(2)
    reward = torch.randn(len(policy.sequence_logp()), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = towards(divergence, RewardTarget(0.8))
    batch = every_answer(policy, base, reward)
    seen = begin_update(method, annotate(method, remembering(method, batch)))
    (ours,) = torch.autograd.grad(decision_losses(method, seen)[0].sum(), policy.logits)
    target = (base.sequence_logp().detach() + reward / 0.8).softmax(0)
    divergence_now = (target * DISTANCES[divergence](policy.sequence_logp().exp() / target)).sum()
    (exact,) = torch.autograd.grad(divergence_now, policy.logits)
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)


@each_divergence
def test_at_the_target_the_gradient_is_zero(divergence: str):
    """A bandit of five arms, the policy at a e^{R/β} / Z, drawn by somebody else."""
    base, reward, beta = torch.tensor([0.3, 0.2, 0.1, 0.25, 0.15]).double(), torch.tensor([1, 0.2, -0.5, 0.7, 0]).double(), 0.5
    logits = (base.log() + reward / beta).clone().requires_grad_()
    method = towards(divergence, RewardTarget(beta))
    (found,) = torch.autograd.grad(method_loss(method, remembering(method, arms(logits, base, reward))), logits)
    assert found.abs().max() < 1e-12
    away = (base.log() + reward).clone().requires_grad_()
    (found,) = torch.autograd.grad(method_loss(method, remembering(method, arms(away, base, reward))), away)
    assert found.abs().max() > 1e-3


def arms(logits: Tensor, base: Tensor, reward: Tensor) -> Batch:
    """Each arm once, drawn alike."""
    logp, count = logits.log_softmax(0), len(base)
    return Batch(
        sampled=torch.ones(count, 1, dtype=torch.float64),
        reward=reward,
        group=torch.zeros(count, dtype=torch.int64),
        task=torch.zeros(count, dtype=torch.int64),
        behavior=View(torch.full((count, 1), -math.log(count), dtype=torch.float64)),
        proximal=View(logp.detach().unsqueeze(1)),
        current=View(logp.unsqueeze(1)),
        reference={"start": View(base.log().unsqueeze(1))},
        components={"task": reward},
    )


@each_divergence
def test_descended_a_bandit_ends_at_the_target(divergence: str):
    """The closed form a e^{R/β} / Z. Total variation has a slope of ±1/2 everywhere else, so it only comes near."""
    base, reward = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.0, 1.0, 0.5]).double()
    method, logits = towards(divergence, RewardTarget(1.0)), base.log().clone()
    for step in range(150):
        table = logits.clone().requires_grad_()
        (slope,) = torch.autograd.grad(method_loss(method, remembering(method, arms(table, base, reward))), table)
        rate = 1 / (1 + step) if divergence == "tv" else 1.5 if "chi2" in divergence else 3.0
        logits = logits - rate * slope
    wanted = (base.log() + reward).softmax(0)
    assert torch.allclose(logits.softmax(0), wanted, atol=1e-6 if divergence != "tv" else 2e-3)


# -- numbers by hand -------------------------------------------------------------------------------------------------------


def test_the_slopes_by_hand():
    """At t = 2 and t = 1/2, and where the target is zero."""
    log_t = torch.tensor([2.0, 0.5], dtype=torch.float64).log()
    by_hand = {
        "forward-kl": [-0.5, -2.0],
        "reverse-kl": [math.log(2) + 1, 1 - math.log(2)],
        "js": [math.log(4 / 3), math.log(2 / 3)],
        "tv": [0.5, -0.5],
        "forward-chi2": [0.75, -3.0],
        "reverse-chi2": [2.0, -1.0],
    }
    for divergence, wanted in by_hand.items():
        assert generator_slope(divergence, log_t).tolist() == pytest.approx(wanted), divergence
    ruled_out = torch.tensor([torch.inf])
    at_zero = {"forward-kl": 0.0, "js": math.log(2), "tv": 0.5, "forward-chi2": 1.0}
    assert {name: float(generator_slope(name, ruled_out)) for name in at_zero} == pytest.approx(at_zero)


def two_right_of_eight(method: Method, **changes) -> Batch:
    """Eight answers of one prompt by the base model itself; the first two are right."""
    reward = torch.tensor([1.0] * 2 + [0.0] * 6, dtype=torch.float64)
    half = torch.full((8,), 0.125, dtype=torch.float64)
    batch = arms(half.log(), half, reward).replace(**changes)
    return annotate(method, remembering(method, batch))


def test_a_constraint_by_hand():
    """Z = 2/8, so t = 1/4 for right answers and infinite for the others. Jensen-Shannon's pseudo-rewards: log(5/2) and -log 2."""
    seen = two_right_of_eight(towards("js", PointwiseTarget()))
    assert seen.advantage[:, 0].tolist() == pytest.approx([math.log(2.5)] * 2 + [-math.log(2)] * 6)
    assert two_right_of_eight(towards("forward-kl", PointwiseTarget())).advantage[:, 0].tolist() == pytest.approx(
        [4.0] * 2 + [0.0] * 6
    )
    assert two_right_of_eight(towards("reverse-kl", PointwiseTarget())).advantage[2, 0] == pytest.approx(-51 - math.log(0.25))


def test_where_nothing_of_weight_was_seen_nothing_is_learned():
    nothing = torch.zeros(8, dtype=torch.float64)
    seen = two_right_of_eight(towards("js", PointwiseTarget()), reward=nothing)
    assert not seen.advantage.any() and seen.signal["pseudo_reward"].isnan().all()
    seen = two_right_of_eight(towards("js", RewardTarget(0.1)), reward=nothing)
    assert not seen.advantage.any() and not seen.signal["pseudo_reward"].isnan().any(), "the base model is the target"


# -- what is remembered ----------------------------------------------------------------------------------------------------


def test_normalizer_and_baseline_are_remembered_and_each_prompt_has_its_own():
    method = towards("js", PointwiseTarget(), window=10, normalizer="task")
    task = torch.tensor([7] * 4 + [3] * 4)
    part = method.advantage
    seen = two_right_of_eight(method, task=task)
    state = part.update(part.init(), seen, {})
    assert state["normalizer"]["task"].tolist() == [3, 7] and state["normalizer"]["count"].tolist() == [4, 4]
    assert state["normalizer"]["log_sum"].exp().tolist() == pytest.approx([0.0, 2.0])
    assert state["last"].tolist() == pytest.approx([math.log(3 / 2)] * 2 + [-math.log(2)] * 2), "prompt 3 is not known yet"
    again = part.update(state, seen, {})
    assert again["normalizer"]["count"].tolist() == [8, 8] and len(again["last"]) == 8
    assert len(part.update(again, seen, {})["last"]) == 10
    later = annotate(method, bind(method, {"advantage": state}, two_right_of_eight(method, task=task).replace(advantage=None)))
    baseline = (math.log(3 / 2) - math.log(2)) / 2
    assert later.advantage[:4, 0].tolist() == pytest.approx([math.log(3 / 2) - baseline] * 2 + [-math.log(2) - baseline] * 2)


def test_rows_that_a_filter_dropped_are_in_no_normalizer():
    """What the learner hands to `update` has the signals of rows that learned, NaN for the others."""
    batch = random_batch(0, groups=2, samples=4)
    columns = {
        name: getattr(batch, name) for name in ("sampled", "reward", "group", "task", "behavior", "proximal", "reference", "key")
    }
    everything = Trajectories(**columns)
    rows = annotate(f_dpg, remembering(f_dpg, everything)).keep_rows(torch.arange(8) >= 4)
    given = with_advantage(everything, rows)
    assert given.signal["pseudo_reward"].isnan().tolist() == [True] * 4 + [False] * 4
    state = f_dpg.advantage.update(f_dpg.advantage.init(), given, {})
    assert state["normalizer"]["task"].tolist() == [1001] and len(state["last"]) == 4


def test_moments_are_fitted_once_to_what_the_base_model_says():
    """Of four samples with φ = 0, 0, 0, 1 the mean is 1/2 where e^λ = 3."""
    target = MomentTarget(moments=(0.5,), samples=4)
    method = towards("forward-kl", target)
    reward = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    base = torch.full((4,), 0.25, dtype=torch.float64)
    batch = arms(base.log(), base, reward)
    waiting = annotate(method, remembering(method, batch))
    assert not waiting.advantage.any() and not len(method.advantage.update(method.advantage.init(), waiting, {})["last"])
    state = target.update(target.init(), batch, {})
    assert state["coefficients"].tolist() == pytest.approx([math.log(3)]) and not len(state["seen"])
    assert target.update(state, batch, {}) is state
    states = {"advantage": method.advantage.init(), "advantage.target": state}
    seen = annotate(method, bind(method, states, batch))
    assert seen.advantage[:, 0].tolist() == pytest.approx([2 / 3] * 3 + [2.0]), "P/(Z π): Z = (3 + 3)/4, weights 1 and 3"


def test_two_moments_at_once():
    features = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    coefficients = fitted(features, torch.tensor([0.7, 0.2], dtype=torch.float64), ("one", "two"))
    assert coefficients.tolist() == pytest.approx([math.log(0.7 / 0.3), math.log(0.2 / 0.8)])


def test_moments_that_cannot_be_had_are_refused():
    never = torch.zeros(6, 1, dtype=torch.float64)
    with pytest.raises(MethodError, match=r"'task' a mean of 0\.5: of 6 answers of the base model its values lie between 0 and 0"):
        fitted(never, torch.tensor([0.5], dtype=torch.float64), ("task",))
    with pytest.raises(MethodError, match="give each feature one moment"):
        MomentTarget(features=("task", "format"))
    batch = arms(torch.zeros(4).double(), torch.ones(4).double() / 4, torch.zeros(4).double())
    with pytest.raises(MethodError, match="weighs the part 'polite' of the reward; the parts of this one are: task"):
        MomentTarget(features=("polite",))(batch)


def test_infinite_log_ratios_and_rewards_stay_finite():
    batch = random_batch(2, groups=2, samples=4, dtype=torch.float32)
    far = replace_view(batch, "proximal", logp=torch.where(batch.sampled > 0, -400.0, 0.0))
    for divergence in DIVERGENCES:
        for target in (RewardTarget(1e-3), PointwiseTarget()):
            assert gradient(towards(divergence, target), far).finite(), (divergence, target)
