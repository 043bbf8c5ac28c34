"""REC, OPMD, AsymRE and RED: what they equal, and their numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.balanced import BalancedBaseline, SoftBaseline
from upslope.objective.base import Advantage
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.surrogate.masked import MaskedLikelihood
from upslope.objective.weight.advantage import AdvantageWeight
from upslope.types import Batch

grpo, gspo, reinforce = find("grpo"), find("gspo"), find("reinforce")
rec, opmd, asymre, red, red_weight = (find(name) for name in ("rec", "opmd", "asymre", "red", "red-weight"))
plain = grpo.derive(regularize=None, advantage=GroupBaseline(ddof=0))
as_grpo = {"advantage": plain.advantage, "aggregate": plain.aggregate}


def _reward(policy: ExactPolicy) -> Tensor:
    tokens, sampled = policy.sequences()
    return (tokens == 1).double().sum(1) * 0.5 - 0.3 * sampled.sum(1)


# -- identities ------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "rec")
@pytest.mark.parametrize("move", [0.0, 0.3, 1.0])
def test_one_side_with_importance_weights_is_grpos_gradient(move: float):
    before = ExactPolicy.random(seed=5)
    policy = before.moved(seed=6, by=move) if move else before
    batch = policy.batch(before.draw(48, seed=1), _reward(before), samples=8, proximal=before)
    ours, theirs = policy.gradient(rec.derive(**as_grpo), batch), policy.gradient(plain, batch)
    assert theirs.norm() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "rec")
def test_on_a_ragged_batch_where_most_decisions_clip(ragged_batch: Batch):
    ours, theirs = gradient(rec.derive(**as_grpo), ragged_batch), gradient(plain, ragged_batch)
    torch.testing.assert_close(ours.logp, theirs.logp, rtol=1e-9, atol=1e-12)
    assert (theirs.logp == 0).sum() > (ragged_batch.sampled == 0).sum(), "some decisions must be clipped"
    notes = [
        decision_losses(method, begin_update(method, annotate(method, ragged_batch)))[1]
        for method in (rec.derive(**as_grpo), plain)
    ]
    on = ragged_batch.sampled > 0
    for name in ("clipped_high", "clipped_low"):
        assert torch.equal(notes[0][name] & on, notes[1][name] & on)


@pytest.mark.checks("identity", "rec-gspo")
def test_the_sequence_form_is_gspos_gradient(ragged_batch: Batch):
    method = find("rec-gspo").derive(advantage=gspo.advantage).with_knobs({"surrogate.low": 0.06, "surrogate.high": 0.09})
    theirs = gradient(gspo.with_knobs({"surrogate.low": 0.06, "surrogate.high": 0.09}), ragged_batch)
    torch.testing.assert_close(gradient(method, ragged_batch).logp, theirs.logp, rtol=1e-9, atol=1e-12)
    assert theirs.logp.any()


@pytest.mark.checks("identity", "rec", "rec-nois", "rec-ring", "rec-gspo", "opmd")
@pytest.mark.parametrize("name", ["rec", "rec-nois", "rec-ring", "rec-gspo", "opmd"])
def test_at_the_first_update_all_are_reinforce(name: str):
    batch = at_proximal(random_batch(seed=4))
    method = find(name)
    theirs = gradient(reinforce.derive(aggregate=method.aggregate), batch)
    torch.testing.assert_close(gradient(method, batch).logp, theirs.logp, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "rec", "opmd")
def test_without_mask_weight_and_penalty_it_is_reinforce(ragged_batch: Batch):
    parent = reinforce.derive(aggregate=rec.aggregate)
    off = rec.derive(surrogate=MaskedLikelihood(mask="none", importance="none"))
    assert_same(gradient(off, ragged_batch), gradient(parent, ragged_batch), exact=True)
    assert_same(gradient(opmd.with_knobs({"regularize.weight": 0.0}), ragged_batch), gradient(parent, ragged_batch))


@dataclass(frozen=True)
class Shifted(Advantage):
    """The group's baseline, lowered."""

    by: float = 0.1

    def __call__(self, batch: Batch) -> Tensor:
        return GroupBaseline(scale="none")(batch) + self.by * batch.sampled


@pytest.mark.checks("identity", "asymre")
@pytest.mark.parametrize("shift", [0.0, 0.1, 0.7])
def test_asymre_is_a_shift_of_the_baseline(ragged_batch: Batch, shift: float):
    shifted = reinforce.derive(aggregate=asymre.aggregate, advantage=Shifted(shift))
    assert_same(gradient(asymre.with_knobs({"regularize.weight": shift}), ragged_batch), gradient(shifted, ragged_batch))


@pytest.mark.checks("identity", "red", "red-weight")
def test_red_without_its_changes_is_reinforce(ragged_batch: Batch):
    parent = gradient(reinforce.derive(aggregate=red.aggregate), ragged_batch)
    flat = red_weight.derive(weight=AdvantageWeight(temperature=math.inf))
    assert_same(gradient(flat, ragged_batch), parent, exact=True)
    # Two right and two wrong: nobody is in the majority, so nothing is dropped.
    reward = torch.tensor([1.0, 0.0, 0.0, 1.0] * 3, dtype=torch.float64)
    even = ragged_batch.replace(reward=reward)
    assert_same(gradient(red, even), gradient(reinforce.derive(aggregate=red.aggregate), even))


# -- an independent implementation -------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "rec", by="verl")
@pytest.mark.parametrize("seed", range(3))
def test_rec_has_the_gradient_of_verls_clipped_loss(seed: int):
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    batch = random_batch(seed)
    method = rec.derive(advantage=plain.advantage)
    leaf = batch.current.logp
    config = _Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=1e9, global_batch_info={})
    loss, *_ = POLICY_LOSS_REGISTRY["vanilla"](
        old_log_prob=batch.proximal.logp,
        log_prob=leaf,
        advantages=annotate(method, batch).advantage,
        response_mask=batch.sampled,
        loss_agg_mode="token-mean",
        config=config,
    )
    (theirs,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(gradient(method, batch).logp, theirs, rtol=1e-9, atol=1e-12)
    assert theirs.abs().max() > 1e-4


class _Config(dict):
    """Settings that are read as attributes and with ``get``."""

    __getattr__ = dict.__getitem__


# -- numbers ---------------------------------------------------------------------------------------------------------------

RATIOS = (0.3, 0.7, 1.0, 1.3, 3.5)
THROUGH = {  # for a positive and for a negative advantage, bounds 0.2 and 0.2, ring from 0.6 and 2.0
    "none": ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
    "one-side": ((1, 1, 1, 0, 0), (0, 0, 1, 1, 1)),
    "two-side": ((0, 0, 1, 0, 0), (0, 0, 1, 0, 0)),
    "ring": ((1, 0, 1, 0, 0), (0, 0, 1, 0, 1)),
}


def _five_ratios() -> Batch:
    """One right and one wrong answer of five tokens each, with these ratios."""
    batch = random_batch(seed=0, groups=1, samples=2, positions=5, ragged=False)
    batch = batch.replace(reward=torch.tensor([1.0, 0.0], dtype=torch.float64))
    return replace_view(batch, "current", logp=batch.proximal.logp + torch.tensor(RATIOS, dtype=torch.float64).log())


@pytest.mark.checks("oracle", "rec", "rec-ring", by="hand-worked numbers")
@pytest.mark.parametrize("importance", ["none", "ratio"])
@pytest.mark.parametrize("mask", list(THROUGH))
def test_masks_and_weights_by_hand(mask: str, importance: str):
    method = rec.derive(surrogate=MaskedLikelihood(mask=mask, importance=importance))
    weight = torch.tensor(RATIOS if importance == "ratio" else (1.0,) * 5, dtype=torch.float64)
    through = torch.tensor(THROUGH[mask], dtype=torch.float64)
    # A = ±1/2, ten tokens: the gradient is -A · weight / 10 where the mask lets it through.
    expected = torch.tensor([[-0.05], [0.05]], dtype=torch.float64) * weight * through
    torch.testing.assert_close(gradient(method, _five_ratios()).logp, expected)


@pytest.mark.checks("oracle", "rec-nois", by="hand-worked numbers")
def test_the_wide_region_by_hand():
    # From 0.4 to 3: only 3.5 is stopped on the way up, only 0.3 on the way down.
    expected = torch.tensor([[-0.05] * 4 + [0.0], [0.0] + [0.05] * 4], dtype=torch.float64)
    torch.testing.assert_close(gradient(find("rec-nois"), _five_ratios()).logp, expected)


@pytest.mark.checks("oracle", "rec-gspo", by="hand-worked numbers")
def test_the_sequence_form_by_hand():
    # s = (0.3 · 0.7 · 1 · 1.3 · 3.5)^(1/5) = 0.95550^(1/5) = 0.99094: below one, so the wrong answer is stopped.
    expected = torch.zeros(2, 5, dtype=torch.float64)
    expected[0] = -0.5 * 0.9555 ** (1 / 5) / 5 / 2
    torch.testing.assert_close(gradient(find("rec-gspo"), _five_ratios()).logp, expected)


@pytest.mark.checks("oracle", "opmd", by="hand-worked numbers")
def test_opmd_by_hand():
    # -A / 10 from the score function and 2 · 0.1 · log r / 10 from the penalty.
    log = torch.tensor(RATIOS, dtype=torch.float64).log()
    expected = torch.tensor([[-0.05], [0.05]], dtype=torch.float64) + 0.02 * log
    torch.testing.assert_close(gradient(opmd, _five_ratios()).logp, expected)


@pytest.mark.checks("oracle", "opmd", by="hand-worked numbers")
def test_the_soft_baseline_by_hand():
    batch = random_batch(seed=0, groups=1, samples=4, ragged=False)
    batch = batch.replace(reward=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    # log mean exp = log((e + 3) / 4) = 0.357374; divided by 1 + 1.
    baseline = math.log((math.e + 3) / 4)
    found = batch.row_mean(SoftBaseline(1.0)(batch))
    assert found.tolist() == pytest.approx([(1 - baseline) / 2, *[-baseline / 2] * 3])
    assert baseline == pytest.approx(0.357374, abs=1e-6)
    torch.testing.assert_close(SoftBaseline(math.inf)(batch), GroupBaseline(scale="none")(batch))


@pytest.mark.checks("oracle", "asymre", by="hand-worked numbers")
def test_asymre_by_hand():
    # -(A + 0.1) / 10 with A = ±1/2.
    expected = torch.tensor([[-0.06], [0.04]], dtype=torch.float64).expand(2, 5)
    torch.testing.assert_close(gradient(asymre, _five_ratios()).logp, expected)


def _one_right_of_six() -> Batch:
    batch = random_batch(seed=0, groups=2, samples=6)
    return batch.replace(reward=torch.tensor([0.0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], dtype=torch.float64))


@pytest.mark.checks("oracle", "red", by="hand-worked numbers")
def test_red_keeps_as_many_wrong_as_right():
    batch = _one_right_of_six()
    kept = BalancedBaseline().kept(batch)
    right = batch.reward > 0
    assert kept[right].all()
    assert [int((kept & ~right)[group].sum()) for group in (slice(0, 6), slice(6, 12))] == [2, 1]
    # Right and wrong in equal number: the mean of what is kept is a half.
    expected = torch.where(kept, batch.reward - 0.5, 0.0)
    torch.testing.assert_close(batch.row_mean(BalancedBaseline()(batch)), expected)
    scaled = batch.row_mean(BalancedBaseline(scale="std", eps=0.0)(batch))
    torch.testing.assert_close(scaled, 2 * expected)


@pytest.mark.checks("oracle", "red", by="hand-worked numbers")
def test_red_drops_at_random_and_differently_in_every_draw():
    batch = _one_right_of_six()
    picks = torch.stack([BalancedBaseline().kept(batch.replace(draw=draw)) for draw in range(400)]).double()
    share = picks.mean(0)[batch.reward == 0]
    # Two of four wrong answers are kept in the first group, one of five in the second; 400 draws, four standard errors.
    expected = torch.tensor([0.5] * 4 + [0.2] * 5, dtype=torch.float64)
    assert ((share - expected).abs() < 4 * (expected * (1 - expected) / 400).sqrt()).all()


@pytest.mark.checks("oracle", "red-weight", by="hand-worked numbers")
def test_red_weight_by_hand():
    # A = ±1/2: the weights are e^0.5 = 1.64872 and e^-0.5 = 0.60653.
    expected = torch.tensor([[-0.05 * math.exp(0.5)], [0.05 * math.exp(-0.5)]], dtype=torch.float64).expand(2, 5)
    torch.testing.assert_close(gradient(red_weight, _five_ratios()).logp, expected)


def test_nonsense_is_refused():
    for wrong in ({"low": -0.1}, {"cap": 0.0}, {"far_low": 0.1}, {"far_high": 0.1}):
        with pytest.raises(MethodError, match="0"):
            MaskedLikelihood(**wrong)
    for part in (AdvantageWeight, SoftBaseline):
        with pytest.raises(MethodError, match="temperature is -1"):
            part(temperature=-1.0)
