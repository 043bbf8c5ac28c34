"""P3O and CoPG: RLOO where the policy has not moved, the regularized optimum where it has arrived, IPO for two scores."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.estimator import method_loss
from upslope.testing.batches import replace_view, with_needs
from upslope.types import Batch, View

p3o, copg, rloo, ipo = (find(name) for name in ("p3o", "copg", "rloo", "ipo"))
FREE = {"advantage.beta": 0.0}
JOINT = {"surrogate.joint": True}
both_clips = pytest.mark.parametrize("clip", [{}, JOINT], ids=["apart", "joint"])


def with_reward(batch: Batch, *reward: float) -> Batch:
    found = torch.tensor(reward, dtype=torch.float64)
    return batch.replace(reward=found, components={"task": found})


def summed(batch: Batch, logp: Tensor) -> Tensor:
    return (logp * batch.sampled).sum(1)


# -- P3O -------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "p3o")
def test_p3o_with_its_changes_off_is_rloo(ragged_batch: Batch):
    plain = p3o.derive(advantage=rloo.advantage, surrogate=rloo.surrogate, aggregate=rloo.aggregate)
    assert_same(gradient(plain, ragged_batch), gradient(rloo, ragged_batch), exact=True)


@both_clips
@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.checks("identity", "p3o")
def test_where_the_policy_has_not_moved_p3o_has_the_gradient_of_rloo(clip: dict, samples: int):
    batch = at_proximal(random_batch(3, groups=4, samples=samples))
    ours, theirs = gradient(p3o.with_knobs(FREE | clip), batch), gradient(rloo, batch)
    torch.testing.assert_close(ours.logp, theirs.logp, rtol=1e-12, atol=1e-15)


def pair(ratios: tuple[float, float]) -> Batch:
    """Two answers of one token that earned 1 and 0.5, whose ratios are these."""
    batch = with_reward(random_batch(0, groups=1, samples=2, positions=1, ragged=False), 1.0, 0.5)
    logp = batch.proximal.logp + torch.tensor(ratios, dtype=torch.float64).log().unsqueeze(1)
    return replace_view(batch, "current", logp=logp.requires_grad_())


@pytest.mark.checks("oracle", "p3o", by="both clips worked out by hand")
def test_the_clip_of_each_ratio_by_hand():
    """d = 1/2. Within: -(1/2)(0.5·0.9·1.1 - 0.5·1.1·0.9) = 0, gradient -w_i ρ_i / 2. A ratio of 1.5 of the better one is bounded by
    1.2 and has no gradient."""
    method = p3o.with_knobs(FREE)
    inside = gradient(method, pair((1.1, 0.9)))
    assert inside.loss.item() == pytest.approx(0.0, abs=1e-12)
    assert inside.logp.flatten().tolist() == pytest.approx([-0.5 * 0.9 * 1.1 / 2, 0.5 * 1.1 * 0.9 / 2])
    outside = gradient(method, pair((1.5, 0.9)))
    assert outside.loss.item() == pytest.approx(-(0.5 * 0.9 * 1.2 - 0.5 * 1.5 * 0.9) / 2)
    assert outside.logp.flatten().tolist() == pytest.approx([0.0, 0.5 * 1.5 * 0.9 / 2])


@pytest.mark.checks("oracle", "p3o", by="both clips worked out by hand")
def test_the_joint_clip_by_hand():
    """q = 1.1/1: its log, 0.0953, is within ±0.2. The free gain is d·1.1·0.0953; the bounded one, d·0.0953, is less and has the
    gradient d/2."""
    method = p3o.with_knobs(FREE | JOINT)
    log = torch.tensor(1.1).log().item()
    inside = gradient(method, pair((1.1, 1.0)))
    assert inside.loss.item() == pytest.approx(-0.5 * log / 2, rel=1e-6)
    assert inside.logp.flatten().tolist() == pytest.approx([-0.25, 0.25])
    outside = gradient(method, pair((1.5, 1.0)))
    assert outside.loss.item() == pytest.approx(-0.5 * 0.2 / 2) and not outside.logp.any()


def test_the_penalty_stands_in_the_reward(ragged_batch: Batch):
    """What RLOO does with rewards from which β times the log-ratio of the answer is taken."""
    batch = at_proximal(ragged_batch)
    moved = summed(batch, batch.proximal.logp - batch.reference["start"].logp)
    paid = batch.replace(reward=batch.reward - 0.3 * moved)
    torch.testing.assert_close(gradient(p3o.with_knobs({"advantage.beta": 0.3}), batch).logp, gradient(rloo, paid).logp)


@both_clips
def test_a_constant_in_the_rewards_of_a_prompt_changes_nothing_to_the_bit(clip: dict):
    """Rewards of 0 and 1 in float32, and constants that float32 holds exactly."""
    batch = random_batch(5, groups=6, samples=2, dtype=torch.float32)
    reward = torch.tensor([1.0, 0.0] * 6)
    constant = torch.tensor([3.0, -7.5, 0.25, 100.0, 0.0, -1.0]).repeat_interleave(2)
    one, other = (gradient(p3o.with_knobs(clip), batch.replace(reward=each)) for each in (reward, reward + constant))
    assert_same(one, other, exact=True)
    assert one.logp.abs().max() > 0.01


@both_clips
def test_equal_rewards_contribute_nothing(clip: dict):
    batch = with_reward(random_batch(1, groups=1, samples=3), 0.1, 0.1, 0.1)
    found = gradient(p3o.with_knobs(FREE | clip), batch)
    assert found.loss == 0 and not found.logp.any()


# -- CoPG ------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "copg")
def test_copg_with_its_changes_off_is_rloo(ragged_batch: Batch):
    names = ("advantage", "ratio", "surrogate", "aggregate")
    plain = copg.derive(**{name: getattr(rloo, name) for name in names})
    assert_same(gradient(plain, ragged_batch), gradient(rloo, ragged_batch), exact=True)


@pytest.mark.checks("identity", "copg")
@pytest.mark.parametrize("beta", [0.3, 0.0])
def test_copg_is_twice_rloo_on_the_regularized_reward(ragged_batch: Batch, beta: float):
    batch = at_proximal(ragged_batch)
    moved = summed(batch, batch.proximal.logp - batch.reference["start"].logp)
    paid = batch.replace(reward=batch.reward - beta * moved)
    ours = gradient(copg.with_knobs({"surrogate.beta": beta}), batch)
    torch.testing.assert_close(ours.logp, 2 * gradient(rloo, paid).logp)


@pytest.mark.checks("identity", "copg")
def test_without_a_penalty_copg_is_p3o_doubled():
    batch = at_proximal(random_batch(2, groups=4, samples=2))
    ours = gradient(copg.with_knobs({"surrogate.beta": 0.0}), batch)
    torch.testing.assert_close(ours.logp, 2 * gradient(p3o.with_knobs(FREE), batch).logp)


@pytest.mark.checks("oracle", "copg", by="the mean over pairs, one by one")
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_mean_over_all_pairs(seed: int):
    batch, beta = random_batch(seed, groups=2, samples=4), 0.3
    score = summed(batch, batch.current.logp.detach() - batch.reference["start"].logp)
    rest = batch.reward - beta * score
    pairs = [(i, j) for start in (0, 4) for i in range(start, start + 4) for j in range(i + 1, start + 4)]
    by_hand = sum((rest[i] - rest[j]) ** 2 / (2 * beta) for i, j in pairs) / len(pairs)
    torch.testing.assert_close(gradient(copg.with_knobs({"surrogate.beta": beta}), batch).loss, by_hand)


@pytest.mark.checks("identity", "copg")
def test_scores_of_a_half_and_zero_are_ipo():
    """(1/2 - β D)² / 2β = β/2 (D - 1/2β)²."""
    batch, beta = with_reward(random_batch(4, groups=1, samples=2), 0.5, 0.0), 0.3
    sides = with_needs(batch.replace(label={"side": torch.tensor([1, -1])}), ipo)
    ours, theirs = (
        gradient(copg.with_knobs({"surrogate.beta": beta}), batch),
        gradient(ipo.with_knobs({"surrogate.tau": beta}), sides),
    )
    torch.testing.assert_close(ours.loss, beta / 2 * theirs.loss)
    torch.testing.assert_close(ours.logp, beta / 2 * theirs.logp)


REWARD = torch.tensor([1.0, 0.2, -0.5, 0.7, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([0.3, 0.2, 0.1, 0.25, 0.15], dtype=torch.float64)
BETA = 0.5


def offline_pairs(logits: Tensor) -> Batch:
    """Pairs of five arms as somebody collected them who nearly always takes the last two: fixed, each with its own score."""
    pairs = torch.tensor([[3, 4]] * 20 + [[0, 4], [1, 3], [2, 4], [0, 3], [1, 2]])
    arms = pairs.flatten()
    rows = len(arms)
    old = View(torch.full((rows, 1), -1.0, dtype=torch.float64))
    return Batch(
        sampled=torch.ones(rows, 1, dtype=torch.float64),
        reward=REWARD[arms],
        group=torch.arange(rows // 2).repeat_interleave(2),
        task=torch.zeros(rows, dtype=torch.int64),
        behavior=old,
        proximal=old,
        current=View(logits.log_softmax(0)[arms].unsqueeze(1)),
        reference={"start": View(REFERENCE.log()[arms].unsqueeze(1))},
    )


def descended(method, steps: int = 60) -> Tensor:
    """The policy where the loss on these pairs no longer falls."""
    logits = REFERENCE.log().clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=steps, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = method_loss(method, offline_pairs(logits))
        loss.backward()
        return loss

    optimizer.step(closure)
    return logits.detach().softmax(0)


def test_copg_reaches_the_regularized_optimum_from_fixed_pairs_of_somebody_else():
    optimum = (REFERENCE.log() + REWARD / BETA).softmax(0)
    method = copg.with_knobs({"surrogate.beta": BETA})
    assert method_loss(method, offline_pairs(optimum.log())) < 1e-28, "the loss is zero there"
    torch.testing.assert_close(descended(method), optimum, rtol=0, atol=1e-6)


def test_without_the_contrast_the_same_pairs_lead_elsewhere():
    """The policy gradient of the regularized reward, without importance weights and without a baseline: at the optimum that reward
    is the same for all arms but not zero, and who collected the pairs then decides."""
    optimum = (REFERENCE.log() + REWARD / BETA).softmax(0)
    logits = REFERENCE.log().clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(500):
        batch = offline_pairs(logits)
        score = (batch.current.logp - batch.reference["start"].logp).squeeze(1)
        rest = (batch.reward - BETA * score).detach()
        optimizer.zero_grad()
        (-rest * batch.current.logp.squeeze(1)).mean().backward()
        optimizer.step()
    assert (logits.detach().softmax(0) - optimum).abs().max() > 0.02


def test_other_baselines_give_the_same_gradient(ragged_batch: Batch):
    """What is subtracted from all rewards of a group cancels."""
    centred = copg.derive(advantage=GroupBaseline(scale="none"))
    assert_same(gradient(centred, ragged_batch), gradient(copg, ragged_batch))
