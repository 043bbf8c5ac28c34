"""GRPO and what changes one or two of its parts: equal to each other in special cases, and to liger-kernel and TRL."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view, with_outlier
from exact_policy import LENGTH, ExactPolicy, varied_reward
from oracles import (
    BARE,
    HORIZON,
    assert_grpos_first_gradient,
    assert_loss_and_gradient,
    clipped_share,
    loss_and_gradient,
    one_answer,
    oracle_batch,
    row_advantages,
    trl_inputs,
    trl_stub,
)

from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.aggregate import TokenMean
from upslope.objective.base import Surrogate
from upslope.objective.estimator import annotate, begin_update, method_loss
from upslope.objective.ratio import NoRatio, SequenceRatio
from upslope.objective.surrogate import ClippedWeight, LogLikelihood, PessimisticClip, Unclipped
from upslope.objective.weight import TopEntropy
from upslope.types import Batch, Method

grpo, dr_grpo, dapo, gspo, cispo, gmpo, high_entropy = (
    find(name) for name in ("grpo", "dr-grpo", "dapo", "gspo", "cispo", "gmpo", "high-entropy")
)
rloo, reinforce, dhpo = (find(name) for name in ("rloo", "reinforce", "dhpo"))
plain = grpo.derive(regularize=None)
"""GRPO without its KL term."""


WIDE = PessimisticClip(0.06, 0.09)
"""A region for sequences of a few tokens, so that some are inside and some outside."""

SEEDS = range(4)


# -- at the first update all ratios are one --------------------------------------------------------------------------------


FIRST = {
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo.derive(aggregate=plain.aggregate),
    "dapo": dapo.derive(aggregate=plain.aggregate, reward=None, filter=None),
    "score function": plain.derive(ratio=NoRatio(), surrogate=LogLikelihood()),
}


@pytest.mark.checks("identity", "grpo", "gspo", "gmpo", "cispo", "dapo")
@pytest.mark.checks("oracle", "gmpo", by="on a policy small enough to enumerate, its gradient at the first update is GRPO's")
@pytest.mark.parametrize("case", FIRST)
def test_at_the_first_update_they_have_grpos_gradient(case: str):
    assert_grpos_first_gradient(FIRST[case])


# -- grpo, dr-grpo, dapo, high-entropy -------------------------------------------------------------------------------------


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


@pytest.mark.checks("identity", "dapo")
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


@pytest.mark.checks("identity", "dr-grpo")
def test_dr_grpo_is_rloo_scaled(near_batch: Batch):
    ours, theirs = gradient(dr_grpo, near_batch).logp, gradient(rloo, near_batch).logp
    torch.testing.assert_close(ours, (4 - 1) / 4 * theirs / near_batch.horizon)
    policy = ExactPolicy.random(seed=6)
    batch = policy.batch(policy.draw(48, seed=2), varied_reward(policy), samples=8)
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


@pytest.mark.checks("identity", "high-entropy")
def test_high_entropy_at_full_share_is_dapo(ragged_batch: Batch):
    assert_same(gradient(high_entropy.with_knobs({"weight.fraction": 1.0}), ragged_batch), gradient(dapo, ragged_batch), exact=True)


# -- gspo, cispo, gmpo -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surrogate", [WIDE, gspo.surrogate, Unclipped()], ids=str)
def test_both_forms_of_the_sequence_gradient_agree(ragged_batch: Batch, surrogate: Surrogate):
    token = gspo.derive(ratio=SequenceRatio("token"), surrogate=surrogate)
    sequence = gspo.derive(ratio=SequenceRatio("sequence"), surrogate=surrogate)
    assert_same(gradient(token, ragged_batch), gradient(sequence, ragged_batch))
    policy = ExactPolicy.random(seed=7)
    batch = policy.batch(policy.draw(48, seed=3), varied_reward(policy), samples=8, proximal=policy.moved(seed=1, by=0.1))
    torch.testing.assert_close(policy.gradient(token, batch), policy.gradient(sequence, batch), rtol=1e-6, atol=1e-9)


@pytest.mark.checks("identity", "gspo")
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


@pytest.mark.checks("identity", "cispo")
def test_cispo_inside_its_range_is_ppo_and_saturates_outside(ragged_batch: Batch):
    unclipped = plain.derive(surrogate=Unclipped(), aggregate=TokenMean())
    torch.testing.assert_close(gradient(cispo, ragged_batch).logp, gradient(unclipped, ragged_batch).logp)
    narrow = gradient(cispo.with_knobs({"surrogate.high": 0.1}), ragged_batch).logp
    ratio = (ragged_batch.current.logp - ragged_batch.proximal.logp).exp().detach()
    assert (ratio > 1.1).any()
    torch.testing.assert_close(narrow, gradient(unclipped, ragged_batch).logp * ratio.clamp(max=1.1) / ratio)


@pytest.mark.checks("oracle", "cispo", by="loss and gradient worked out by hand")
def test_cispo_by_hand(ragged_batch: Batch):
    """Ratio 2, upper bound 1.5: loss -1.5 A log pi, and the gradient goes on."""
    batch = replace_view(ragged_batch, "current", logp=(ragged_batch.proximal.logp + math.log(2)).requires_grad_())
    method = plain.derive(surrogate=ClippedWeight(high=0.5))
    advantage = annotate(method, batch).advantage
    expected = -1.5 * advantage * begin_update(method, annotate(method, batch)).share
    torch.testing.assert_close(gradient(method, batch).logp, expected)
    torch.testing.assert_close(method_loss(method, batch), (expected * batch.current.logp).sum())


@pytest.mark.checks("identity", "gmpo")
def test_gmpo_unclipped_is_gspo_unclipped_and_an_outlier_leaves_the_others_alive(near_batch: Batch):
    assert_same(gradient(gmpo, near_batch), gradient(gspo.derive(surrogate=Unclipped()), near_batch))
    outlier = with_outlier(near_batch, row=0, position=3, distance=1.0)
    assert near_batch.reward[0] > near_batch.reward[1], "the outlier's answer is a good one"
    ours, theirs = (gradient(method, outlier).logp[0] for method in (gmpo, gspo.derive(surrogate=WIDE)))
    others = (near_batch.sampled[0] > 0) & (torch.arange(8) != 3)
    assert ours[3] == 0 and (ours[others] != 0).all() and not theirs.any()


@pytest.mark.checks("oracle", "gmpo", by="loss and gradient worked out by hand")
@pytest.mark.parametrize(
    ("logs", "advantage", "bounded"),
    [
        ((0.1, 0.9, -0.2), 2.0, (0.1, 0.4, -0.2)),  # too high and good: held at 0.4
        ((0.1, 0.9, -0.2), -2.0, (0.1, 0.9, -0.2)),  # too high and bad: free to come down
        ((0.1, -0.9, -0.2), -2.0, (0.1, -0.4, -0.2)),
        ((0.1, -0.9, -0.2), 2.0, (0.1, -0.9, -0.2)),
    ],
)
def test_gmpo_by_hand(logs: tuple, advantage: float, bounded: tuple):
    value = -advantage * math.exp(sum(bounded) / 3)
    loss, grad = loss_and_gradient(find("gmpo"), one_answer([math.exp(d) for d in logs], advantage))
    assert loss == pytest.approx(value)
    assert grad == pytest.approx([value / 3 if held == d else 0.0 for d, held in zip(logs, bounded, strict=True)])


# -- liger-kernel and TRL --------------------------------------------------------------------------------------------------


NARROW = PessimisticClip(low=0.06, high=0.09)


def library_cases() -> dict[str, tuple[Method, dict]]:
    """Our method and the settings under which the others compute the same."""
    grpo = find("grpo")
    token = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "level": "token", "delta": None}
    sequence = {**token, "epsilon_low": 0.06, "epsilon_high": 0.09, "level": "sequence"}
    return {
        "grpo": (grpo, {**token, "loss_type": "grpo", "beta": 0.04}),
        "dr-grpo": (find("dr-grpo"), {**token, "loss_type": "dr_grpo"}),
        # With all tokens in one batch, DAPO's normaliser and BNPO's are the same; both are asked.
        "dapo": (find("dapo").derive(**BARE), {**token, "epsilon_high": 0.28, "loss_type": "dapo", "delta": 10.0}),
        "dapo, low dual clip": (
            find("dapo").derive(**BARE, surrogate=PessimisticClip(0.2, 0.28, dual=1.5)),
            {**token, "epsilon_high": 0.28, "loss_type": "dapo", "delta": 1.5},
        ),
        "token mean": (grpo.derive(aggregate=TokenMean()), {**token, "loss_type": "bnpo", "beta": 0.04}),
        "gspo": (find("gspo").derive(surrogate=NARROW), {**sequence, "loss_type": "grpo"}),
        "gspo, paper's bounds": (find("gspo"), {**sequence, "epsilon_low": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"}),
        # Theirs bound the weight itself, ours its distance from one.
        "cispo": (find("cispo").derive(surrogate=ClippedWeight(1.0, 0.3)), {**token, "epsilon_high": 1.3, "loss_type": "cispo"}),
    }


CASES = list(library_cases())


@pytest.mark.checks(
    "oracle", "grpo", "dr-grpo", "gspo", "cispo", by="loss and gradient equal those of liger-kernel on ragged batches"
)
@pytest.mark.checks(
    "oracle", "dapo", by="without its filter and length penalty, loss and gradient equal those of liger-kernel and TRL"
)
@pytest.mark.oracle("liger-kernel")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_liger(case: str, seed: int):
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

    method, settings = library_cases()[case]
    batch = oracle_batch(seed)
    leaf = batch.current.logp
    loss, metrics = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        leaf,
        batch.sampled,
        row_advantages(method, batch),
        batch.sampled,
        ref_per_token_logps=batch.reference["start"].logp,
        old_per_token_logps=batch.proximal.logp,
        epsilon_low=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        beta=settings["beta"],
        loss_type=settings["loss_type"],
        max_completion_length=HORIZON,
        importance_sampling_level=settings["level"],
        delta=settings["delta"],
    )
    assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    if settings["loss_type"] != "cispo":  # there its metric counts clipped weights on one side of the advantage only
        torch.testing.assert_close(clipped_share(method, batch), metrics[-1].double(), rtol=1e-6, atol=0)


@pytest.fixture(scope="module")
def grpo_trainer() -> type:
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


@pytest.mark.checks("oracle", "grpo", "dr-grpo", "gspo", "cispo", by="loss and gradient equal those of TRL on ragged batches")
@pytest.mark.checks(
    "oracle", "dapo", by="without its filter and length penalty, loss and gradient equal those of liger-kernel and TRL"
)
@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_trl(grpo_trainer: type, case: str, seed: int):
    method, settings = library_cases()[case]
    batch = oracle_batch(seed)
    leaf = batch.current.logp
    stub = trl_stub(grpo_trainer, leaf, batch.current.entropy.detach(), settings)
    loss = grpo_trainer._compute_loss(stub, None, trl_inputs(method, batch))
    assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    if settings["level"] == "token" and settings["loss_type"] != "cispo" and settings["delta"] != 1.5:
        (theirs,) = stub._metrics["train"]["clip_ratio/region_mean"]
        assert clipped_share(method, batch).item() == pytest.approx(theirs, rel=1e-6)


@pytest.mark.checks("oracle", "grpo", by="advantages equal those of TRL")
@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
def test_group_advantages_match_trls_formula(seed: int):
    from trl.trainer.utils import nanstd

    batch = oracle_batch(seed)
    grouped = batch.reward.view(3, 4)
    theirs = (grouped - grouped.nanmean(1, keepdim=True)) / (nanstd(grouped, dim=1).unsqueeze(1) + 1e-4)
    ours = GroupBaseline(eps=1e-4)(batch)
    torch.testing.assert_close(ours, theirs.flatten().unsqueeze(1) * batch.sampled)


@pytest.mark.checks("oracle", "high-entropy", by="selected tokens equal those of TRL")
@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", range(8))
def test_high_entropy_keeps_the_tokens_that_trl_keeps(grpo_trainer: type, seed: int):
    batch = random_batch(seed, groups=3, samples=4, positions=5 + seed)
    stub = trl_stub(grpo_trainer, batch.current.logp, batch.current.entropy, library_cases()["dapo"][1])
    theirs = stub.get_high_entropy_mask(batch.proximal.entropy.float(), batch.sampled, 1 - 0.2)
    ours = TopEntropy(fraction=0.2)(batch) * batch.sampled
    assert torch.equal(ours > 0, theirs)
    assert 0 < theirs.sum() < batch.sampled.sum() / 4


@pytest.mark.checks("oracle", "high-entropy", by="loss and gradient equal those of TRL on ragged batches")
@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
def test_high_entropy_loss_and_gradient_match_trl(grpo_trainer: type, seed: int):
    # TRL divides by all tokens, which is our denominator="all".
    method = find("high-entropy").derive(**BARE, weight=TopEntropy(0.2, denominator="all"))
    batch = oracle_batch(seed)
    leaf = batch.current.logp
    stub = trl_stub(grpo_trainer, leaf, batch.proximal.entropy, library_cases()["dapo"][1], top_entropy=0.2)
    loss = grpo_trainer._compute_loss(stub, None, trl_inputs(method, batch))
    assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    selected = gradient(method.derive(weight=TopEntropy(0.2)), batch)
    kept = (TopEntropy(0.2)(batch) * batch.sampled).sum()
    torch.testing.assert_close(selected.logp, gradient(method, batch).logp * batch.sampled.sum() / kept)
