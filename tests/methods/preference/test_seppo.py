"""SePPO: DPO where the policy is ahead, imitation of both answers where it is not; who writes the other answer, what is told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner
from torch import Tensor
from torch.nn.functional import logsigmoid

import upslope as up
from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.references import Snapshot
from upslope.types import Batch, Source, View

seppo, dpo = find("seppo"), find("dpo")
FIXED = seppo.derive(ratio=AgainstReferences(), data=(), references={})
"""Against a reference that stays, on pairs that are there."""
liger = pytest.importorskip("liger_kernel.chunked_loss.dpo_loss", reason="liger-kernel comes with upslope[oracles]")


def pairs_batch(seed: int, ahead: bool | None = None, pairs: int = 5) -> Batch:
    """Pairs of answers; ``ahead`` says whether the policy finds all the given ones likelier than the reference does, or none."""
    batch = random_batch(seed, groups=pairs, samples=2)
    batch = batch.replace(label={"side": 1 - 2 * (torch.arange(batch.rows) % 2)})
    if ahead is None:
        return batch
    logp = batch.reference["start"].logp + (0.2 if ahead else -0.2)
    logp = torch.where(batch.label["side"].unsqueeze(1) > 0, logp, batch.current.logp.detach())
    return batch.replace(current=View(logp.requires_grad_()))


def ratios(batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-ratios of the given answers and of the others."""
    rows = ((batch.current.logp - batch.reference["start"].logp) * batch.sampled).sum(1)
    return rows[batch.label["side"] > 0], rows[batch.label["side"] < 0]


@pytest.mark.checks("identity", "seppo")
@pytest.mark.parametrize(("flip", "ahead"), [(False, None), (True, True)])
def test_with_a_sign_of_one_and_a_fixed_reference_it_is_dpo(flip: bool, ahead: bool | None):
    """SPIN's loss; always without the flip, and where the policy is ahead of the reference on every given answer."""
    batch = pairs_batch(1, ahead)
    assert_same(gradient(FIXED.with_knobs({"surrogate.flip": flip}), batch), gradient(dpo, batch), exact=True)


@pytest.mark.checks("oracle", "seppo", by="liger-kernel, with the sign put into the losers")
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_liger_with_flipped_losers(seed: int):
    batch = pairs_batch(seed)
    won, lost = ratios(batch)
    flipped = torch.where(won.detach() < 0, -lost, lost)
    assert 0 < int((won < 0).sum()) < len(won)
    theirs = liger.LigerFusedLinearDPOFunction.preference_loss_fn(won, flipped, torch.zeros(batch.rows, 1), beta=0.1)[0]
    (grad,) = torch.autograd.grad(theirs, batch.current.logp)
    found = gradient(FIXED, batch)
    torch.testing.assert_close(found.loss, theirs.detach())
    torch.testing.assert_close(found.logp, grad)


def by_hand(won: float, lost: float, beta: float = 0.5) -> tuple[float, list[float]]:
    """Loss and gradient of two answers of one token with these log-ratios."""
    batch = random_batch(0, groups=1, samples=2, positions=1, ragged=False).replace(label={"side": torch.tensor([1, -1])})
    logp = batch.reference["start"].logp + torch.tensor([[won], [lost]], dtype=torch.float64)
    found = gradient(FIXED.with_knobs({"surrogate.beta": beta}), batch.replace(current=View(logp.requires_grad_())))
    return found.loss.item(), found.logp.flatten().tolist()


def test_both_signs_by_hand():
    """Ahead by 1: 0.5·(1 - 0.4) = 0.3, the other answer is pushed down. Behind by 1: 0.5·(-1 + 0.4) = -0.3, it is pulled up too."""
    chance = 1 / (1 + math.exp(0.3))  # σ(-0.3)
    loss, grad = by_hand(1.0, 0.4)
    assert loss == pytest.approx(-math.log(1 - chance)) and grad == pytest.approx([-0.5 * chance, 0.5 * chance])
    loss, grad = by_hand(-1.0, 0.4)
    assert loss == pytest.approx(-math.log(chance)) and grad == pytest.approx([-0.5 * (1 - chance), -0.5 * (1 - chance)])
    assert by_hand(0.0, 0.4)[1][1] > 0, "a sign of zero counts as +1"


def test_where_the_other_answer_has_not_moved_it_is_imitation_measured_from_the_reference():
    batch = pairs_batch(2)
    still = torch.where(batch.label["side"].unsqueeze(1) > 0, batch.current.logp.detach(), batch.reference["start"].logp)
    batch = batch.replace(current=View(still.requires_grad_()))
    won, _ = ratios(batch)
    torch.testing.assert_close(gradient(FIXED, batch).loss, -logsigmoid(0.1 * won).mean().detach())


# -- runs ------------------------------------------------------------------------------------------------------------------


def test_the_reference_of_a_step_writes_the_other_answers():
    """Given answers win against those of the copy that is compared with: their behaviour is its log-probabilities."""
    pooled = seppo.derive(references={"pool": Snapshot(every=1, age="newest", keep=2, choose="random")})
    made = learner(pooled, replace(SIZES, lr=1e-2))
    losses = []
    for step in range(1, 5):
        metrics = made.step(step)
        losses.append(metrics["loss"])
        rows = made.last
        written = rows.of_source(Source.FURTHER)
        assert rows.label["side"].tolist() == torch.where(written, -1, 1).tolist() and int(written.sum()) == 4
        assert sorted(rows.group[written].tolist()) == sorted(rows.group[~written].tolist())
        on = (rows.sampled > 0) & written.unsqueeze(1)
        torch.testing.assert_close(rows.behavior.logp[on], rows.reference["pool"].logp[on], rtol=1e-4, atol=1e-4)
        assert metrics["kept_rows"] == 1 and metrics["further_samples"] == 4
    assert any(abs(loss - math.log(2)) > 1e-4 for loss in losses), "an earlier policy was drawn"


def test_the_first_loss_is_log_2_and_shares_are_told(tmp_path):
    sizes = {"model": "tiny:layers=1,width=32", "warm_start": 0.0, "tasks_per_step": 4, "eval_problems": 4}
    run = up.train("seppo", "reverse:length=2", steps=3, out=tmp_path / "run", **sizes)
    first = run.metrics[0]
    assert first["loss"] == pytest.approx(math.log(2), rel=1e-5) and first["learned_too"] == 0 and first["margin"] == 0
    assert {"logp_chosen", "logp_rejected", "preferred", "margin"} <= run.metrics[2].keys()


def test_answers_of_the_policy_itself_cannot_be_challenged():
    with pytest.raises(MethodError, match="Challengers has given answers challenged"):
        learner(seppo.derive(rollout=None)).step(1)
