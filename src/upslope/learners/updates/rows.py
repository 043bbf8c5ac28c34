"""Updates on rows, slice by slice: language models, and any policy whose method must see more than single decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.autograd.graph import increment_version

from upslope.learners.metrics import MetricSums
from upslope.learners.nonfinite import norm_of
from upslope.learners.optimizer_step import OptimizerStep
from upslope.learners.policy_views import PolicyViews
from upslope.learners.token_trace import TokenTrace
from upslope.learners.updates.column_grads import as_leaf, column_grads
from upslope.learners.updates.slicing import pack, share_groups
from upslope.objective import estimator
from upslope.runtime.settings import Settings
from upslope.types import Method, Trajectories


class RowUpdater:
    """Deals out whole groups, and goes forward and backward on slices that fit into memory."""

    def __init__(self, method: Method, views: PolicyViews, optimizer: OptimizerStep, settings: Settings):
        self.method, self.views, self.optimizer, self.settings = method, views, optimizer, settings
        self.needs, self.scope = estimator.slice_columns(method), estimator.slice_scope(method)

    def shares(self, rows: Trajectories, order: torch.Generator) -> Sequence[Trajectories]:
        cuts = self.settings.updates_per_step
        policy = self.views.policy
        if not cuts and getattr(policy, "sized_in_decisions", policy.independent_decisions):
            cuts = math.ceil(int(rows.sampled.sum()) / (self.settings.minibatch or 64))
        return share_groups(rows, cuts or 1, order)

    def update(self, share: Trajectories, number: int, sums: MetricSums, trace: TokenTrace | None = None) -> None:
        method, policy, optimizer = self.method, self.views.policy, self.optimizer
        rows = self.views.before_update(method, share.replace(draw=number))
        batch = estimator.begin_update(method, rows).replace(current=None)
        sums.add("learning", 0.0, batch.sampled.sum())
        learning = (~estimator.silent_rows(method, batch)).nonzero().squeeze(1)
        if not len(learning):  # Adam would move even on zeros
            sums.add("empty_updates", 1.0, 1.0)
            return
        optimizer.optimizer.zero_grad(set_to_none=True)
        for index in pack(batch, learning, policy.slice_tokens(batch), policy.token_budget(), self.scope, policy.pads):
            self._backward(batch if len(index) == batch.rows else batch.take_rows(index), sums, trace)
        moved = optimizer.apply(norm_of(optimizer.grads()), sums)
        # A fused optimiser does not say so itself, and what was computed with the old weights must not be used any more.
        increment_version(optimizer.parameters())
        if not moved:
            optimizer.report_skipped(method, rows, self.needs)

    def _backward(self, piece: Trajectories, sums: MetricSums, trace: TokenTrace | None) -> None:
        """Backward pass of one slice. The objective sees detached columns; their gradients then go through the policy."""
        view = self.views.evaluate(self.method, self.views.policy, piece, self.needs)
        grads = column_grads(self.method, piece, view.map(as_leaf), sums, trace)
        columns = view.columns()
        torch.autograd.backward([columns[name] for name in grads], list(grads.values()))
