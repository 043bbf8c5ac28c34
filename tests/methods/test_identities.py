"""What methods must be in special cases: equal to each other, to the exact gradient, to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view
from exact_policy import LENGTH, ExactPolicy, chunk_gradients, worst_z, z_along
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import GroupBaseline, MovingBaseline, RawReward
from upslope.objective.aggregate import TokenMean
from upslope.objective.base import Branch, Mix, Notes, Surrogate
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.ratio import ConstantMix, EntropyMix, Hybrid, NoRatio, SequenceRatio, TokenRatio
from upslope.objective.regularize import kl_estimate
from upslope.objective.surrogate import Bounds, BranchClip, LogLikelihood, PessimisticClip, Unclipped
from upslope.types import Batch, Method

grpo, gspo, dhpo, dapo, rloo, reinforce = (find(name) for name in ("grpo", "gspo", "dhpo", "dapo", "rloo", "reinforce"))
dr_grpo, gmpo, cispo, ppo, high_entropy = (find(name) for name in ("dr-grpo", "gmpo", "cispo", "ppo", "high-entropy"))
plain = grpo.derive(regularize=None)
"""GRPO without its KL term."""


# -- against the exact gradient --------------------------------------------------------------------------------------------

SAMPLES = 2
"""Answers per group: where the group's own mean is most biased, by a factor of a half."""


@pytest.fixture(scope="module")
def exact() -> ExactPolicy:
    return ExactPolicy.random(seed=3)


def _reward(policy: ExactPolicy) -> Tensor:
    """Some reward of every answer, none near zero: a baseline has something to remove."""
    tokens, sampled = policy.sequences()
    return 2.0 + (tokens == 1).double().sum(1) * 0.5 - 0.3 * sampled.sum(1)


def _chunks(policy: ExactPolicy) -> list[Batch]:
    """20,000 answers of the policy's own as 100 independent batches."""
    picks = policy.draw(20_000, seed=11)
    return [policy.batch(part, _reward(policy), SAMPLES) for part in picks.split(200)]


def _estimates(policy: ExactPolicy, advantage, method: Method = reinforce, baseline: float = 0.0) -> Tensor:
    method = method.derive(advantage=advantage)
    return chunk_gradients(policy, method, _chunks(policy), lambda batch: batch.replace(state={advantage: {"baseline": baseline}}))


UNBIASED = {
    "no baseline": (reinforce, RawReward(), 0.0),
    "moving baseline": (reinforce, MovingBaseline(), 2.0),
    "leave one out": (reinforce, GroupBaseline(scale="none", leave_one_out=True), 0.0),
    "rloo": (rloo, rloo.advantage, 0.0),
}


@pytest.mark.parametrize("case", UNBIASED)
def test_the_sample_gradient_is_the_exact_gradient(exact: ExactPolicy, case: str):
    method, advantage, baseline = UNBIASED[case]
    estimates = _estimates(exact, advantage, method, baseline)
    truth = exact.expected_gradient(_reward(exact))
    # Up to 120 coordinates: all stay below 4.5 with probability 0.998 (Student's t, 99 degrees of freedom). The seed is fixed.
    assert worst_z(estimates, truth) < 4.5
    assert abs(z_along(estimates, truth)) < 3.5


def test_the_groups_own_mean_is_biased_by_exactly_its_share(exact: ExactPolicy):
    own = _estimates(exact, GroupBaseline(scale="none"))
    others = _estimates(exact, GroupBaseline(scale="none", leave_one_out=True))
    torch.testing.assert_close(own, others * (SAMPLES - 1) / SAMPLES)
    assert z_along(own, exact.expected_gradient(_reward(exact))) < -10, "the z-test must be able to see a bias"


def test_a_baseline_lowers_the_variance(exact: ExactPolicy):
    mean = exact.expected(_reward(exact)).item()
    raw, centred, siblings = (
        _estimates(exact, part, baseline=mean).var(0).sum()
        for part in (RawReward(), MovingBaseline(), GroupBaseline(scale="none", leave_one_out=True))
    )
    assert centred < 0.2 * raw and siblings < 0.5 * raw and centred < siblings


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_kl_estimates_against_the_exact_divergence(estimator: str):
    policy, other = ExactPolicy.random(seed=1, ragged=False), ExactPolicy.random(seed=2, ragged=False)
    tokens, sampled = policy.sequences()
    chance = policy.sequence_logp().exp().detach()
    estimate = (kl_estimate(policy.logp(tokens), other.logp(tokens).detach(), estimator) * sampled).sum(1) @ chance
    if estimator != "k2":
        torch.testing.assert_close(estimate, policy.divergence(other))
    # The divergence at each prefix, prefixes weighted as they were sampled: what a loss per decision can differentiate.
    divergence = (policy.divergence_at(other, tokens) * sampled).sum(1) @ chance
    torch.testing.assert_close(divergence, policy.divergence(other))
    ours, truth = (torch.autograd.grad(term, policy.logits)[0] for term in (estimate, divergence))
    right = torch.allclose(ours, truth, atol=1e-9)
    assert right == (estimator in ("k2", "k3+"))


# -- at the first update all ratios are one --------------------------------------------------------------------------------


FIRST = {
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo.derive(aggregate=plain.aggregate),
    "dapo": dapo.derive(aggregate=plain.aggregate, reward=None, filter=None),
    "dhpo": dhpo,
    "dhpo, w = 0.2": dhpo.with_knobs({"ratio.mix.share": 0.2}),
    "dhpo, entropy": find("dhpo-entropy"),
    "dhpo, per branch": dhpo.with_knobs({"surrogate.form": "per_branch_min"}),
    "score function": plain.derive(ratio=NoRatio(), surrogate=LogLikelihood()),
}


@pytest.mark.parametrize("case", FIRST)
def test_at_the_first_update_they_have_grpos_gradient(case: str):
    policy = ExactPolicy.random(seed=5)
    batch = policy.batch(policy.draw(48, seed=1), _reward(policy), samples=8)
    ours, theirs = policy.gradient(FIRST[case], batch), policy.gradient(plain, batch)
    assert theirs.norm() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    ragged = at_proximal(random_batch(seed=4))
    torch.testing.assert_close(gradient(FIRST[case], ragged).logp, gradient(plain, ragged).logp)


def test_ppo_at_the_first_update_is_reinforce_with_its_advantage(ragged_batch: Batch):
    batch = at_proximal(ragged_batch)
    score = ppo.derive(ratio=NoRatio(), surrogate=LogLikelihood())
    torch.testing.assert_close(gradient(ppo, batch).logp, gradient(score, batch).logp)


# -- grpo and what changes one part of it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [1, 3, 7])
def test_grpo_advantages_of_right_and_wrong(right: int):
    batch = random_batch(seed=0, groups=2, samples=8)
    batch = batch.replace(reward=(torch.arange(16) % 8 < right).double())
    row = GroupBaseline(ddof=0, eps=0.0)(batch).sum(1) / batch.lengths()
    share = right / 8
    right_one, wrong_one = math.sqrt((1 - share) / share), -math.sqrt(share / (1 - share))
    assert row.tolist() == pytest.approx([right_one if reward else wrong_one for reward in batch.reward])
    torch.testing.assert_close(row.view(2, 8).sum(1), torch.zeros(2).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1e-30, 12345.678])
def test_a_group_without_signal_has_exactly_no_gradient(value: float):
    batch = random_batch(seed=0, groups=2, samples=6)  # six times 0.1 has a mean that is not 0.1
    reward = torch.where(batch.group == batch.group[0], value, batch.reward)
    for method in (plain, rloo, dr_grpo, gspo, dhpo, reinforce):
        found = gradient(method, batch.replace(reward=reward)).logp
        assert not found[:6].any() and found[6:].any()
    single = random_batch(seed=0, groups=3, samples=1)
    assert not gradient(plain, single).logp.any()
    assert gradient(plain.with_knobs({"advantage.singleton": "raw"}), single).logp.any()


def test_dapo_with_its_changes_off_is_grpo_to_the_last_bit(ragged_batch: Batch):
    reverted = dapo.derive(
        surrogate=grpo.surrogate, aggregate=grpo.aggregate, regularize=grpo.regularize, filter=None, reward=grpo.reward
    )
    assert_same(gradient(reverted, ragged_batch), gradient(grpo, ragged_batch), exact=True)


def test_dapo_drops_groups_by_the_tasks_reward(ragged_batch: Batch):
    task = ragged_batch.reward.clone()
    task[:4] = 1.0
    found = gradient(dapo, ragged_batch.replace(reward=task, components={"task": task}))
    without = gradient(dapo, ragged_batch.take_rows(torch.arange(4, 12)))
    assert not found.logp[:4].any()
    torch.testing.assert_close(found.logp[4:], without.logp)


def test_dr_grpo_is_rloo_scaled(near_batch: Batch):
    ours, theirs = gradient(dr_grpo, near_batch).logp, gradient(rloo, near_batch).logp
    torch.testing.assert_close(ours, (4 - 1) / 4 * theirs / near_batch.horizon)
    policy = ExactPolicy.random(seed=6)
    batch = policy.batch(policy.draw(48, seed=2), _reward(policy), samples=8)
    torch.testing.assert_close(policy.gradient(dr_grpo, batch), 7 / 8 * policy.gradient(rloo, batch) / LENGTH)


def test_length_bias():
    """Wrong answers of 5 and of 50 tokens: Dr.GRPO weighs their tokens the same, GRPO the long one's ten times less."""
    batch = at_proximal(random_batch(seed=0, groups=1, samples=3, positions=50, ragged=False))
    sampled = batch.sampled.clone()
    sampled[1, 5:] = 0
    batch = batch.replace(sampled=sampled, reward=torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    fair, biased = gradient(dr_grpo, batch).logp[:, 0], gradient(plain, batch).logp[:, 0]
    assert fair[1] > 0 and fair[1].item() == pytest.approx(fair[2].item())
    assert biased[1].item() == pytest.approx(10 * biased[2].item())


def test_high_entropy_at_full_share_is_dapo(ragged_batch: Batch):
    assert_same(gradient(high_entropy.with_knobs({"weight.fraction": 1.0}), ragged_batch), gradient(dapo, ragged_batch), exact=True)


# -- gspo, cispo, gmpo -----------------------------------------------------------------------------------------------------

WIDE = PessimisticClip(0.06, 0.09)
"""A region for sequences of a few tokens, so that some are inside and some outside."""


@pytest.mark.parametrize("surrogate", [WIDE, gspo.surrogate, Unclipped()], ids=str)
def test_both_forms_of_the_sequence_gradient_agree(ragged_batch: Batch, surrogate: Surrogate):
    token = gspo.derive(ratio=SequenceRatio("token"), surrogate=surrogate)
    sequence = gspo.derive(ratio=SequenceRatio("sequence"), surrogate=surrogate)
    assert_same(gradient(token, ragged_batch), gradient(sequence, ragged_batch))
    policy = ExactPolicy.random(seed=7)
    batch = policy.batch(policy.draw(48, seed=3), _reward(policy), samples=8, proximal=policy.moved(seed=1, by=0.1))
    torch.testing.assert_close(policy.gradient(token, batch), policy.gradient(sequence, batch), rtol=1e-6, atol=1e-9)


def test_answers_of_one_token_make_gspo_grpo():
    batch = random_batch(seed=2, positions=1, ragged=False)
    assert_same(gradient(gspo.derive(surrogate=plain.surrogate), batch), gradient(plain, batch))


def test_a_clipped_sequence_loses_all_its_gradients(ragged_batch: Batch):
    method = gspo.derive(surrogate=WIDE)
    batch = annotate(method, ragged_batch)
    ratio = batch.row_mean(batch.current.logp - batch.proximal.logp).exp().detach()
    sign = batch.advantage.sum(1).sign()
    out = ((sign > 0) & (ratio > 1.09)) | ((sign < 0) & (ratio < 0.94))
    assert out.any() and (~out).any()
    alive = (gradient(method, ragged_batch).logp != 0) == (batch.sampled * sign.abs().unsqueeze(1) > 0)
    assert not gradient(method, ragged_batch).logp[out].any() and alive[~out].all()


def test_cispo_inside_its_range_is_ppo_and_saturates_outside(ragged_batch: Batch):
    unclipped = plain.derive(surrogate=Unclipped(), aggregate=TokenMean())
    torch.testing.assert_close(gradient(cispo, ragged_batch).logp, gradient(unclipped, ragged_batch).logp)
    narrow = gradient(cispo.with_knobs({"surrogate.high": 0.1}), ragged_batch).logp
    ratio = (ragged_batch.current.logp - ragged_batch.proximal.logp).exp().detach()
    assert (ratio > 1.1).any()
    torch.testing.assert_close(narrow, gradient(unclipped, ragged_batch).logp * ratio.clamp(max=1.1) / ratio)


def test_gmpo_unclipped_is_gspo_unclipped_and_an_outlier_leaves_the_others_alive(near_batch: Batch):
    assert_same(gradient(gmpo, near_batch), gradient(gspo.derive(surrogate=Unclipped()), near_batch))
    outlier = _with_outlier(near_batch, row=0, position=3, distance=1.0)
    assert near_batch.reward[0] > near_batch.reward[1], "the outlier's answer is a good one"
    ours, theirs = (gradient(method, outlier).logp[0] for method in (gmpo, gspo.derive(surrogate=WIDE)))
    others = (near_batch.sampled[0] > 0) & (torch.arange(8) != 3)
    assert ours[3] == 0 and (ours[others] != 0).all() and not theirs.any()


def _with_outlier(batch: Batch, row: int, position: int, distance: float) -> Batch:
    logp = batch.current.logp.detach().clone()
    logp[row, position] = batch.proximal.logp[row, position] + distance
    return replace_view(batch, "current", logp=logp.requires_grad_())


# -- dhpo ------------------------------------------------------------------------------------------------------------------

TOKEN, SEQUENCE, HALF = Bounds(0.2, 0.28), Bounds(0.05, 0.08), ConstantMix(0.5)


def _dhpo(mix: Mix = HALF, form: str = "single_min", seq_grad: str = "token", surrogate: Surrogate | None = None) -> Method:
    return dhpo.derive(
        ratio=Hybrid(TokenRatio(), SequenceRatio(seq_grad), mix), surrogate=surrogate or BranchClip(TOKEN, SEQUENCE, form)
    )


@pytest.mark.parametrize("form", ["single_min", "per_branch_min"])
@pytest.mark.parametrize("seed", range(3))
def test_dhpo_ends_in_grpo_and_in_gspo(seed: int, form: str):
    as_grpo = plain.derive(surrogate=PessimisticClip(TOKEN.low, TOKEN.high))
    as_gspo = gspo.derive(surrogate=PessimisticClip(SEQUENCE.low, SEQUENCE.high))
    batch = random_batch(seed)
    policy = ExactPolicy.random(seed)
    answers = policy.batch(policy.draw(48, seed), _reward(policy), samples=8, proximal=policy.moved(seed, by=0.4))
    for share, parent in ((1.0, as_grpo), (0.0, as_gspo)):
        assert_same(gradient(_dhpo(ConstantMix(share), form), batch), gradient(parent, batch))
        ours, theirs = policy.gradient(_dhpo(ConstantMix(share), form), answers), policy.gradient(parent, answers)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def _losses(method: Method, batch: Batch, advantage: float) -> Tensor:
    """Loss per decision, every advantage set to one number, before any mean."""
    update = begin_update(method, batch.replace(advantage=batch.sampled * advantage))
    return (decision_losses(method, update)[0] / update.share).detach()[batch.sampled > 0]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_clipped_mix_stays_in_the_mixed_region(share: float):
    batch, method = random_batch(seed=3, drift=1.0), _dhpo(ConstantMix(share))
    free = -_losses(_dhpo(ConstantMix(share), surrogate=Unclipped()), batch, 1.0)
    smaller, larger = -_losses(method, batch, 1.0), _losses(method, batch, -1.0)  # min(u, ū) and max(u, ū)
    clipped = smaller + larger - free
    low, high = (share * getattr(TOKEN, side) + (1 - share) * getattr(SEQUENCE, side) for side in ("low", "high"))
    assert (clipped >= 1 - low - 1e-9).all() and (clipped <= 1 + high + 1e-9).all()
    assert free.min() < 1 - low and free.max() > 1 + high


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_token_outside_its_region_still_learns_from_the_sequence(near_batch: Batch, share: float):
    batch = _with_outlier(near_batch, row=0, position=3, distance=0.4)  # r = 1.49, s near 1.07: inside a region of 0.2
    method = _dhpo(ConstantMix(share), surrogate=BranchClip(TOKEN, Bounds(0.2, 0.2)))
    ours = gradient(method, batch).logp[0, 3]
    theirs = gradient(gspo.derive(surrogate=PessimisticClip(0.2, 0.2)), batch).logp[0, 3]
    assert theirs != 0 and gradient(plain, batch).logp[0, 3] == 0
    torch.testing.assert_close(ours, (1 - share) * theirs)


def test_both_sequence_gradients_agree_in_an_unclipped_constant_mix(ragged_batch: Batch):
    token, sequence = (_dhpo(ConstantMix(0.3), seq_grad=form, surrogate=Unclipped()) for form in ("token", "sequence"))
    assert_same(gradient(token, ragged_batch), gradient(sequence, ragged_batch))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_two_minima_differ_only_where_branches_leave_on_opposite_sides(advantage: float):
    batch = random_batch(seed=4, groups=8, drift=0.6)
    single, branchwise = (-_losses(_dhpo(form=form), batch, advantage) for form in ("single_min", "per_branch_min"))
    free = plain.derive(surrogate=Unclipped())
    token, sequence = (_losses(free.derive(ratio=ratio), batch, -1.0) for ratio in (TokenRatio(), SequenceRatio()))
    opposite = ((token > 1.28) & (sequence < 0.95)) | ((token < 0.8) & (sequence > 1.08))
    assert 10 < opposite.sum() < len(opposite) / 2
    torch.testing.assert_close(single[~opposite], branchwise[~opposite])
    assert (branchwise[opposite] < single[opposite] - 1e-6).all()


@dataclass(frozen=True)
class MixThenClip(Surrogate):
    """The wrong reading of DHPO: one region around the mixed ratio."""

    def takes(self, branches: tuple[str, ...]) -> bool:
        return len(branches) == 2

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        mixed = sum(branch.weight * branch.value for branch in branches)
        return -torch.minimum(mixed * batch.advantage, mixed.clamp(0.8, 1.28) * batch.advantage), {}


def test_mixing_before_clipping_is_another_method(near_batch: Batch):
    batch = _with_outlier(near_batch, row=0, position=3, distance=0.9)  # u = (2.46 + 1.16) / 2 is far outside
    ours, wrong = (
        gradient(_dhpo(surrogate=BranchClip(TOKEN, Bounds(0.2, 0.2))), batch),
        gradient(_dhpo(surrogate=MixThenClip()), batch),
    )
    assert ours.logp[0, 3] != 0 and wrong.logp[0, 3] == 0
    assert ours.loss.item() != pytest.approx(wrong.loss.item(), rel=1e-3)


def test_an_outlier_does_not_swell_the_update():
    """One token of a good answer at d = +3. In a bad answer no pessimistic clip bounds it; that is the dual clip's work."""
    clean = at_proximal(random_batch(seed=5, groups=1, samples=4, ragged=False)).replace(reward=torch.eye(4)[0].double())
    hit = _with_outlier(clean, row=0, position=3, distance=3.0)
    bounded, swollen = (
        gradient(method, hit).logp.norm() / gradient(method, clean).logp.norm() for method in (dhpo, _dhpo(surrogate=Unclipped()))
    )
    assert 0.5 < bounded < 2 < swollen


# -- dhpo's entropy mix ----------------------------------------------------------------------------------------------------


def _entropies() -> Batch:
    """Two groups of two rows of three; the last position of row 1 was not sampled and holds the largest number."""
    batch = random_batch(seed=0, groups=2, samples=2, positions=3, ragged=False)
    entropy = torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 99.0], [5.0, 5.0, 5.0], [4.0, 6.0, 8.0]], dtype=torch.float64)
    sampled = torch.ones_like(entropy)
    sampled[1, 2] = 0
    return replace_view(replace_view(batch, "proximal", entropy=entropy), "current", entropy=8 - entropy).replace(sampled=sampled)


@pytest.mark.parametrize(
    ("mix", "share"),
    [
        (EntropyMix(), [[0, 0.5, 1], [0, 1, None], [0.5, 0.5, 0.5], [0, 0.5, 1]]),
        (EntropyMix(direction=-1), [[1, 0.5, 0], [1, 0, None], [0.5, 0.5, 0.5], [1, 0.5, 0]]),
        (EntropyMix(neutral=0.1, direction=-1), [[1, 0.5, 0], [1, 0, None], [0.1, 0.1, 0.1], [1, 0.5, 0]]),
        (EntropyMix(over="group"), [[0, 1 / 3, 2 / 3], [1 / 3, 1, None], [0.25, 0.25, 0.25], [0, 0.5, 1]]),
        (EntropyMix(over="batch"), [[0, 1 / 8, 2 / 8], [1 / 8, 3 / 8, None], [5 / 8, 5 / 8, 5 / 8], [4 / 8, 6 / 8, 1]]),
        (EntropyMix(source="current"), [[1, 0.5, 0], [1, 0, None], [0.5, 0.5, 0.5], [1, 0.5, 0]]),
        (EntropyMix(source="current", over="group"), [[1, 2 / 3, 1 / 3], [2 / 3, 0, None], [0.75, 0.75, 0.75], [1, 0.5, 0]]),
    ],
    ids=lambda value: str(value) if isinstance(value, EntropyMix) else "",
)  # fmt: skip
def test_entropy_mix_by_hand(mix: EntropyMix, share: list):
    batch, method = _entropies(), _dhpo(mix)
    found = method.ratio(begin_update(method, annotate(method, batch)))
    on = batch.sampled > 0
    expected = torch.tensor([[math.nan if value is None else value for value in row] for row in share], dtype=torch.float64)
    torch.testing.assert_close(found[0].weight[on], expected[on])
    torch.testing.assert_close(found[0].weight + found[1].weight, torch.ones_like(expected))
    assert not found[0].weight.requires_grad and not gradient(method, batch).entropy.any()
    for how in ("one_by_one", "packed"):
        assert_same(gradient(method, batch, how), gradient(method, batch))
