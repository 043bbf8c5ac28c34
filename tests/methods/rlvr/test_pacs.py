"""PACS: its first update is leave-one-out, it stops by itself, and its loss against torch's own cross-entropy, row by row."""

from __future__ import annotations

import pytest
import torch
from batches import at_proximal, gradient, random_batch, replace_view
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.aggregate import SequenceMeanTokenSum
from upslope.objective.estimator import slice_scope
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.surrogate.supervised import LabelFromRatio
from upslope.types import Batch

pacs, rloo = find("pacs"), find("rloo")


def _right_or_wrong(batch: Batch, seed: int = 0) -> Batch:
    chance = torch.rand(batch.rows, generator=torch.Generator().manual_seed(seed))
    return batch.replace(reward=(chance < 0.4).double())


@pytest.mark.checks("identity", "pacs")
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_first_update_is_leave_one_out(scale: float):
    policy = ExactPolicy.random(seed=5)
    reward = (policy.sequences()[0] == 1).any(1).double()
    batch = policy.batch(policy.draw(64, seed=1), reward, samples=8)
    expected = policy.gradient(rloo.derive(ratio=NoRatio(), surrogate=LogLikelihood(), aggregate=SequenceMeanTokenSum()), batch)
    assert expected.norm() > 1e-3
    ours = policy.gradient(pacs.derive(surrogate=LabelFromRatio(scale=scale, balance=False)), batch)
    torch.testing.assert_close(ours, scale * expected, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("identity", "pacs")
def test_the_gradient_fades_where_right_is_told_from_wrong():
    batch = at_proximal(random_batch(seed=1, groups=2, samples=4, positions=3, ragged=False))
    batch = batch.replace(reward=torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 1], dtype=torch.float64))
    first = gradient(pacs, batch).logp.norm()
    told_apart = (2 * batch.reward - 1).unsqueeze(1) * 8
    norms = [
        gradient(pacs, replace_view(batch, "current", logp=batch.proximal.logp + sign * told_apart)).logp.norm() for sign in (1, -1)
    ]
    assert norms[0] < 1e-4 * first, "all right answers likelier, all wrong ones less likely: nothing left to learn"
    assert norms[1] > 1.5 * first, "the wrong way round it learns hardest"


def _by_row(batch: Batch, scale: float, centre: str, balance: bool, score: str) -> Tensor:
    """The loss as the paper writes it, with loops."""
    losses = []
    for name in batch.group.unique():
        rows = [row for row in (batch.group == name).nonzero().squeeze(1) if batch.lengths()[row] > 0]
        on = [batch.sampled[row] > 0 for row in rows]
        if score == "log-ratio":
            found = [(batch.current.logp[row] - batch.proximal.logp[row])[mask].sum() for row, mask in zip(rows, on, strict=True)]
        else:
            found = [batch.current.logp[row][mask].mean() for row, mask in zip(rows, on, strict=True)]
        scores = scale * torch.stack(found)
        labels = batch.reward[torch.stack(rows)]
        for place in range(len(rows)):
            others = [other for other in range(len(rows)) if other != place]
            logit = {
                "siblings": scores[place] - scores[others].mean(),
                "none": scores[place],
                "standard": (scores[place] - scores.mean()) / (scores.std().detach() + 1e-6),
            }[centre]
            same = int((labels == labels[place]).sum())
            weight = len(rows) / (2 * same) if balance and same < len(rows) else 1.0
            losses.append(weight * torch.nn.BCEWithLogitsLoss()(logit, labels[place]))
    return torch.stack(losses).mean()


@pytest.mark.checks("oracle", "pacs", by="torch.nn.BCEWithLogitsLoss, row by row")
@pytest.mark.parametrize("score", ["log-ratio", "likelihood"])
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("centre", ["siblings", "standard", "none"])
def test_loss_and_gradient_row_by_row(centre: str, balance: bool, score: str):
    batch = _right_or_wrong(random_batch(seed=2, groups=3, samples=5, empty_rows=1), seed=2)
    part = LabelFromRatio(scale=0.7, centre=centre, balance=balance, score=score)
    expected = _by_row(batch, 0.7, centre, balance, score)
    (slope,) = torch.autograd.grad(expected, batch.current.logp)
    found = gradient(pacs.derive(surrogate=part), batch)
    torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.logp, slope, rtol=1e-9, atol=1e-12)


@pytest.mark.checks("oracle", "pacs", by="hand-worked numbers")
def test_class_weights_by_hand():
    # One right of four at the first update: weights 4 / (2 · 1) = 2 and 4 / (2 · 3) = 2/3, every loss log 2, all weights sum to 4.
    batch = at_proximal(random_batch(seed=0, groups=1, samples=4, ragged=False, positions=2))
    batch = batch.replace(reward=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    found = gradient(pacs, batch)
    assert found.loss.item() == pytest.approx(torch.tensor(2.0).log().item())
    # dL/dpsi = w (1/2 - R) / 4 = -1/4 and 1/12; psi's own derivative is 1 for its row and -1/3 for the others.
    assert found.logp[:, 0].tolist() == pytest.approx([-1 / 4 - 1 / 12, *[1 / 12 + 1 / 12 - 2 / 36] * 3])


@pytest.mark.checks("identity", "pacs")
def test_a_spoiled_decision_is_finite_and_silent(ragged_batch: Batch):
    assert slice_scope(pacs) == "group"
    for bad in (torch.nan, torch.inf, -torch.inf):
        logp = ragged_batch.current.logp.detach().clone()
        logp[0, 0] = bad
        found, clean = gradient(pacs, replace_view(ragged_batch, "current", logp=logp)), gradient(pacs, ragged_batch)
        assert found.finite() and not found.logp[0, 0]
        torch.testing.assert_close(found.logp[4:], clean.logp[4:])  # other groups know nothing of it


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="scale is 0"):
        LabelFromRatio(scale=0.0)
