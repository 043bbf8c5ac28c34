"""Updates on rows, slice by slice: language models, and any policy whose method must see more than single decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from upslope.learners.metrics import MetricSums
from upslope.learners.optimizer_step import OptimizerStep
from upslope.learners.parts import in_parts
from upslope.learners.policy_views import PolicyViews, divergence, has_updates_before
from upslope.learners.references import START
from upslope.learners.token_trace import TokenTrace
from upslope.learners.updates.column_grads import as_leaf, column_grads
from upslope.learners.updates.slicing import (
    TooLarge,
    cut_smaller,
    deal_groups,
    deal_rows,
    each_slice,
    pack,
    passes_of_others,
    rows_of_groups,
    share_groups,
)
from upslope.objective import estimator
from upslope.policies.forward.gradient_sums import one_update
from upslope.runtime.settings import Settings
from upslope.types import Method, Scope, Trajectories


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A loss over rows: the step's own, or that of a term beside it.

    Fields:
        name: of the term, before its metrics.
        scale: what the loss is multiplied with.
    """

    method: Method
    name: str = ""
    scale: float = 1.0

    @cached_property
    def needs(self) -> frozenset[str]:
        return estimator.slice_columns(self.method)

    @cached_property
    def scope(self) -> Scope:
        return estimator.slice_scope(self.method)


@dataclass(frozen=True, eq=False)
class BesideRows:
    """The rows of a term whose loss is added to the step's own updates, annotated."""

    loss: RowLoss
    rows: Trajectories


@dataclass(frozen=True, eq=False)
class _Begun:
    """A loss at the beginning of an update: what of its rows has a gradient."""

    loss: RowLoss
    rows: Trajectories
    batch: Trajectories
    """The rows, with all that is fixed over the update."""
    learning: Tensor
    sums: MetricSums


class RowUpdater:
    """Deals out whole groups, and goes forward and backward on slices that fit into memory.

    Args:
        beside: terms that learn in the same updates.
        groups: names of all groups that are dealt out, those among them of which no row is left; without any, those of the rows.
        scale: what the loss of the method itself is multiplied with.
        tells_kl: measure the KL to the start in passing (`PolicyViews.update_tells_kl`).
    """

    def __init__(
        self, method: Method, views: PolicyViews, optimizer: OptimizerStep, settings: Settings, beside: Sequence[BesideRows] = (),
        groups: Tensor | None = None, scale: float = 1.0, tells_kl: bool = False,
    ):  # fmt: skip
        self.method, self.views, self.optimizer, self.settings = method, views, optimizer, settings
        self.own, self.beside, self.groups, self.tells_kl = RowLoss(method, scale=scale), beside, groups, tells_kl
        self.team = views.team

    def shares(self, rows: Trajectories, order: torch.Generator) -> Sequence[Trajectories]:
        """The updates of a pass. The rows of terms that go with one stand in its ``aside``, under the term's name."""
        cuts = self.settings.updates_per_step
        policy = self.views.policy
        if not cuts and getattr(policy, "sized_in_decisions", policy.independent_decisions):
            cuts = math.ceil(int(rows.sampled.sum()) / (self.settings.minibatch or 64))
        if not self.beside:
            return share_groups(rows, cuts or 1, order)
        assert self.groups is not None
        return [
            rows_of_groups(rows, dealt).replace(aside={each.loss.name: rows_of_groups(each.rows, dealt) for each in self.beside})
            for dealt in deal_groups(self.groups, cuts or 1, order)
        ]

    def update(self, share: Trajectories, number: int, sums: MetricSums, trace: TokenTrace | None = None) -> None:
        begun = [self._begin(self.own, share, number, sums)] if share.rows else []
        for each in self.beside:
            if (rows := share.aside[each.loss.name]).rows:
                begun.append(self._begin(each.loss, rows, number, MetricSums()))
        optimizer, learning = self.optimizer, [one for one in begun if len(one.learning)]
        if learning:
            self._gradient(learning, trace)
            if trace is not None:
                trace.share(self.team)
            optimizer.sum_grads()
            moved = optimizer.apply(optimizer.norm(optimizer.grads()), sums)
            # A fused optimiser does not say so itself, and what was computed with the old weights must not be used any more.
            increment_version(optimizer.parameters())
            if not moved:
                failed = learning[0]
                optimizer.report_skipped(failed.loss.method, failed.rows, failed.loss.needs)
        else:  # Adam would move even on zeros
            sums.add("empty_updates", 1.0, 1.0)
        for one in begun:
            if one.loss is not self.own:
                sums.merge(one.sums, f"{one.loss.name}_")

    def _begin(self, loss: RowLoss, rows: Trajectories, number: int, sums: MetricSums) -> _Begun:
        rows = self.views.before_update(loss.method, rows.replace(draw=number), moved=has_updates_before(self.method))
        batch = estimator.begin_update(loss.method, rows).replace(current=None)
        if self.team.rank == 0:  # every process begins with all rows
            sums.add("learning", 0.0, batch.sampled.sum())
        if loss.scale != 1.0:
            assert batch.share is not None
            batch = batch.replace(share=batch.share * loss.scale)
        return _Begun(loss, rows, batch, (~estimator.silent_rows(loss.method, batch)).nonzero().squeeze(1), sums)

    def _gradient(self, learning: Sequence[_Begun], trace: TokenTrace | None) -> None:
        """The gradient of all losses of an update.

        Where memory runs out it begins again with smaller slices: a backward pass that broke off has already added to the
        gradients of some layers. Nothing that the first attempt showed is counted. Of a team each does so by itself.
        """
        while True:
            self.optimizer.optimizer.zero_grad(set_to_none=True)
            shown, failed = [MetricSums() for _ in learning], None
            with one_update():
                for one, sums in zip(learning, shown, strict=True):
                    failed = self._backward(one, sums, trace if one.loss is self.own else None)
                    if failed is not None:
                        break
            if failed is None:
                break
            self.optimizer.optimizer.zero_grad(set_to_none=True)
            if trace is not None:
                trace.restart()
            cut_smaller(self.views.policy, failed)
        for one, sums in zip(learning, shown, strict=True):
            one.sums.merge(sums)

    def _backward(self, begun: _Begun, sums: MetricSums, trace: TokenTrace | None) -> TooLarge | None:
        """Backward passes, slice by slice. The objective sees detached columns; their gradients then go through the policy.

        Of a team each goes through its share: the gradients are yet to be added up.
        """
        loss, batch, policy = begun.loss, begun.batch, self.views.policy
        cost = policy.slice_tokens(batch)
        shares = deal_rows(batch, begun.learning, cost, loss.scope, self.team.size)
        cut = pack(batch, shares[self.team.rank], cost, policy.token_budget(), loss.scope, policy.pads)
        slices = len(cut) * sum(len(share) > 0 for share in shares)  # what is counted for each adds up to one

        def backward(index: Tensor) -> None:
            piece = batch if len(index) == batch.rows else batch.take_rows(index.to(batch.sampled.device))
            view = self.views.evaluate(loss.method, policy, piece, loss.needs)
            if self.tells_kl and loss is self.own:
                sums.add("kl_start", *divergence(view.logp.detach(), piece.reference[START].logp, piece))
            grads = column_grads(loss.method, piece, view.map(as_leaf), sums, trace, slices)
            columns = view.columns()
            if in_parts(policy) and "logp" not in grads:  # all processes go through all layers
                grads["logp"] = torch.zeros_like(view.logp)
            torch.autograd.backward([columns[name] for name in grads], list(grads.values()))

        failed = each_slice(batch, cut, cost, loss.scope, backward)
        if in_parts(policy):
            first = batch.take_rows(begun.learning[:1].to(batch.sampled.device))
            for _ in range(passes_of_others(batch, shares, cost, policy, loss.scope) - len(cut)):
                logp = self.views.evaluate(loss.method, policy, first, loss.needs).logp
                torch.autograd.backward([logp], [torch.zeros_like(logp)])
        return failed
