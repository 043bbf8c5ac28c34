"""Where the objective ends: the gradient of a loss in the policy's columns, and what it leaves behind."""

from __future__ import annotations

import torch
from part_values import steps

from upslope.learners.metrics import MetricSums
from upslope.learners.token_trace import TokenTrace
from upslope.learners.updates.column_grads import as_leaf, column_grads
from upslope.methods import find
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.types import View


def test_a_column_that_the_loss_does_not_read_has_no_gradient():
    method, rows = find("dapo"), steps()[0][0]
    view = View(rows.current.logp, rows.current.entropy).map(as_leaf)
    batch = begin_update(method, annotate(method, rows.replace(current=None)))
    found = column_grads(method, batch, view, MetricSums())
    assert list(found) == ["logp"]
    losses, _ = decision_losses(method, batch.replace(current=view))
    assert torch.equal(found["logp"], torch.autograd.grad(losses.sum(), view.logp)[0]) and found["logp"].any()


def test_without_proximal_columns_the_policy_has_not_moved():
    method, rows = find("dapo"), steps()[0][0]
    batch = begin_update(method, annotate(method, rows.replace(current=None, proximal=None)))
    sums = MetricSums()
    sums.add("learning", 0.0, batch.sampled.sum())
    found = column_grads(method, batch, View(rows.current.logp).map(as_leaf), sums)
    told = sums.means()
    assert told["log_ratio"] == told["kl_proximal"] == told["clip_fraction"] == 0 and told["learning"] > 0
    torch.testing.assert_close(found["logp"], -batch.advantage * batch.share)


def test_a_trace_says_what_became_of_each_token():
    method, rows = find("dapo"), steps()[0][0].replace(current=None)
    numbered = TokenTrace(annotate(method, rows))
    batch = begin_update(method, numbered.rows).take_rows(torch.tensor([4, 2]))
    view = View(steps()[0][0].current.logp[[4, 2]]).map(as_leaf)
    column_grads(method, batch, view, MetricSums(), numbered)
    on = rows.sampled > 0
    ratio = (view.logp.detach() - rows.behavior.logp[[4, 2]]).exp()
    for place, row in enumerate((4, 2)):
        assert torch.equal(numbered.columns["ratio"][row][on[row]], ratio[place][on[row]])
        assert numbered.columns["ratio"][row][~on[row]].isnan().all()
        moved = (view.logp.detach() - rows.proximal.logp[[4, 2]]).exp()[place]
        good = batch.advantage[place] > 0
        bounded = torch.where(good, (moved > 1.28).double(), -(moved < 0.8).double()) * (batch.advantage[place] != 0)
        assert torch.equal(numbered.columns["clipped"][row][on[row]], bounded[on[row]])
    others = [row for row in range(12) if row not in (2, 4)]
    assert numbered.columns["ratio"][others].isnan().all() and torch.equal(
        numbered.columns["advantages"][others], numbered.rows.advantage[others]
    )
