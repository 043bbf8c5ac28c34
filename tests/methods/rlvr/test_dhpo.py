"""DHPO and its entropy mix: GRPO and GSPO at its ends, two clips before one mix, and numbers by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view, with_outlier
from exact_policy import ExactPolicy, varied_reward
from oracles import assert_grpos_first_gradient, loss_and_gradient, one_answer
from torch import Tensor

from upslope.methods import find
from upslope.objective.base import Branch, Mix, Notes, Surrogate
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.ratio import ConstantMix, EntropyMix, Hybrid, SequenceRatio, TokenRatio
from upslope.objective.surrogate import Bounds, BranchClip, PessimisticClip, Unclipped
from upslope.types import Batch, Method

dhpo, gspo = find("dhpo"), find("gspo")
plain = find("grpo").derive(regularize=None)
"""GRPO without its KL term."""


TOKEN, SEQUENCE, HALF = Bounds(0.2, 0.28), Bounds(0.05, 0.08), ConstantMix(0.5)


def _dhpo(mix: Mix = HALF, form: str = "single_min", seq_grad: str = "token", surrogate: Surrogate | None = None) -> Method:
    return dhpo.derive(
        ratio=Hybrid(TokenRatio(), SequenceRatio(seq_grad), mix), surrogate=surrogate or BranchClip(TOKEN, SEQUENCE, form)
    )


FIRST = {
    "dhpo": dhpo,
    "dhpo, w = 0.2": dhpo.with_knobs({"ratio.mix.share": 0.2}),
    "dhpo, entropy": find("dhpo-entropy"),
    "dhpo, per branch": dhpo.with_knobs({"surrogate.form": "per_branch_min"}),
}


@pytest.mark.checks("identity", "dhpo", "dhpo-entropy")
@pytest.mark.checks(
    "oracle", "dhpo-entropy", by="on a policy small enough to enumerate, its gradient at the first update is GRPO's"
)
@pytest.mark.parametrize("case", FIRST)
def test_at_the_first_update_they_have_grpos_gradient(case: str):
    assert_grpos_first_gradient(FIRST[case])


@pytest.mark.checks("identity", "dhpo")
@pytest.mark.checks(
    "oracle", "dhpo", by="on a policy small enough to enumerate, its gradient at either end of the mix is GRPO's or GSPO's"
)
@pytest.mark.parametrize("form", ["single_min", "per_branch_min"])
@pytest.mark.parametrize("seed", range(3))
def test_dhpo_ends_in_grpo_and_in_gspo(seed: int, form: str):
    as_grpo = plain.derive(surrogate=PessimisticClip(TOKEN.low, TOKEN.high))
    as_gspo = gspo.derive(surrogate=PessimisticClip(SEQUENCE.low, SEQUENCE.high))
    batch = random_batch(seed)
    policy = ExactPolicy.random(seed)
    answers = policy.batch(policy.draw(48, seed), varied_reward(policy), samples=8, proximal=policy.moved(seed, by=0.4))
    for share, parent in ((1.0, as_grpo), (0.0, as_gspo)):
        assert_same(gradient(_dhpo(ConstantMix(share), form), batch), gradient(parent, batch))
        ours, theirs = policy.gradient(_dhpo(ConstantMix(share), form), answers), policy.gradient(parent, answers)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.checks("oracle", "dhpo", by="loss and gradient worked out by hand")
def test_dhpo_by_hand():
    """Ratios 1.5, 0.9, 1: s = 1.35^(1/3) = 1.10521. Clipped: 1.28, 0.9, 1 and 1.02. Mixed halves: ū = 1.15, 0.96, 1.01."""
    method = find("dhpo").with_knobs({"surrogate.sequence.low": 0.01, "surrogate.sequence.high": 0.02})
    loss, grad = loss_and_gradient(method, one_answer([1.5, 0.9, 1.0], 1.0))
    assert loss == pytest.approx(-(1.15 + 0.96 + 1.01) / 3)
    assert grad == pytest.approx(
        [0.0, -0.5 * 0.9 / 3, -0.5 * 1.0 / 3]
    )  # the sequence is outside its region, two tokens inside theirs
    loss, grad = loss_and_gradient(method, one_answer([1.5, 0.9, 1.0], -1.0))
    free = [0.5 * (ratio + 1.35 ** (1 / 3)) for ratio in (1.5, 0.9, 1.0)]  # 1.30261, 1.00261, 1.05261: worse than clipped
    assert loss == pytest.approx(sum(free) / 3)
    assert grad == pytest.approx([u / 3 for u in free])


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
    batch = with_outlier(near_batch, row=0, position=3, distance=0.4)  # r = 1.49, s near 1.07: inside a region of 0.2
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
    batch = with_outlier(near_batch, row=0, position=3, distance=0.9)  # u = (2.46 + 1.16) / 2 is far outside
    ours, wrong = (
        gradient(_dhpo(surrogate=BranchClip(TOKEN, Bounds(0.2, 0.2))), batch),
        gradient(_dhpo(surrogate=MixThenClip()), batch),
    )
    assert ours.logp[0, 3] != 0 and wrong.logp[0, 3] == 0
    assert ours.loss.item() != pytest.approx(wrong.loss.item(), rel=1e-3)


def test_an_outlier_does_not_swell_the_update():
    """One token of a good answer at d = +3. In a bad answer no pessimistic clip bounds it; that is the dual clip's work."""
    clean = at_proximal(random_batch(seed=5, groups=1, samples=4, ragged=False)).replace(reward=torch.eye(4)[0].double())
    hit = with_outlier(clean, row=0, position=3, distance=3.0)
    bounded, swollen = (
        gradient(method, hit).logp.norm() / gradient(method, clean).logp.norm() for method in (dhpo, _dhpo(surrogate=Unclipped()))
    )
    assert 0.5 < bounded < 2 < swollen


# -- the entropy mix -------------------------------------------------------------------------------------------------------


def _entropies() -> Batch:
    """Two groups of two rows of three; the last position of row 1 was not sampled and holds the largest number."""
    batch = random_batch(seed=0, groups=2, samples=2, positions=3, ragged=False)
    entropy = torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 99.0], [5.0, 5.0, 5.0], [4.0, 6.0, 8.0]], dtype=torch.float64)
    sampled = torch.ones_like(entropy)
    sampled[1, 2] = 0
    return replace_view(replace_view(batch, "proximal", entropy=entropy), "current", entropy=8 - entropy).replace(sampled=sampled)


@pytest.mark.checks("oracle", "dhpo-entropy", by="mixing weights worked out by hand")
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
