"""Updates on single decisions: few enough to need no slices, and so many of them that the calls are what costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from upslope.learners.metrics import MetricSums
from upslope.learners.optimizer_step import OptimizerStep
from upslope.learners.policy_views import PolicyViews
from upslope.learners.token_trace import TokenTrace
from upslope.learners.updates.decision_objective import DecisionObjective
from upslope.learners.updates.slicing import Share, share_decisions
from upslope.objective import estimator
from upslope.runtime.settings import Settings
from upslope.types import DecisionPolicy, Method, Trajectories


class DecisionUpdater:
    """Shuffles the decisions of a step into minibatches; the policy goes forward and backward on arrays."""

    def __init__(self, method: Method, policy: DecisionPolicy, views: PolicyViews, optimizer: OptimizerStep, settings: Settings):
        self.method, self.policy, self.optimizer, self.settings = method, policy, optimizer, settings
        self.needs = estimator.slice_columns(method)
        self.objective = DecisionObjective(method, views, self.needs, replays=not policy.plain)

    def shares(self, rows: Trajectories, order: torch.Generator) -> Sequence[Share]:
        cuts = self.settings.updates_per_step
        size = math.ceil(int(rows.sampled.sum()) / cuts) if cuts else self.settings.minibatch or 64
        return share_decisions(rows, size, order)

    def update(self, share: Share, number: int, sums: MetricSums, trace: TokenTrace | None = None) -> None:
        done = self.policy.forward_pass(share.inputs(), self.needs)
        grads, pending = self.objective(share, done.columns, number)
        sums.defer(pending)
        if not grads:  # Adam would move even on zeros
            sums.add("empty_updates", 1.0, 1.0)
        elif not self.optimizer.apply(self.policy.backward_pass(done, grads), sums):
            self.optimizer.report_skipped(self.method, share.rows().replace(draw=number), self.needs)
