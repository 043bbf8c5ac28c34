"""Policy views: the columns of the policy and of its references on rows, and how far the policy has moved from its start."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.learners.parts import in_parts
from upslope.learners.references import START, References, reference_parts
from upslope.learners.updates.slicing import cut_smaller, deal_rows, each_slice, pack, passes_of_others
from upslope.objective import estimator
from upslope.objective.regularize import kl_estimate
from upslope.plain_data import JsonDict
from upslope.rollout.reference_cache import KeptReferences
from upslope.runtime.team import ALONE, Team
from upslope.types import Method, Metrics, Policy, Trajectories, View
from upslope.types.batch import spread

WATCHED_ROWS = 64
"""Rows on which the KL to the start is measured when the method itself does not need it."""
WATCHED_SHARE = 8
"""Of rows nobody sampled it is measured on every eighth: it takes passes of its own there (a step was 1.7 times as long)."""


def has_updates_before(method: Method) -> bool:
    """Whether some term has an update of its own before those of the step."""
    return any(term.when == "before" for _, term in method.terms)


class PolicyViews:
    """Evaluates the policy and its references, as a method wants them evaluated.

    Args:
        watch_kl: measure the KL to the start even if the method does not need it.
        cache: of the start, where rows are the same in every epoch.
        team: with whom passes without gradient are shared out.
    """

    def __init__(
        self, policy: Policy, references: References, watch_kl: bool, cache: KeptReferences | None = None, team: Team = ALONE
    ):
        self.policy, self.references, self.watch_kl, self.cache, self.team = policy, references, watch_kl, cache, team

    def alone(self) -> PolicyViews:
        """The same for rows that only this process knows of: a policy in parts is asked whole."""
        policy = getattr(self.policy, "whole", None) or self.policy
        return PolicyViews(policy, self.references, self.watch_kl, self.cache)

    def evaluate(self, method: Method, policy: Policy, rows: Trajectories, needs: frozenset[str]) -> View:
        """Columns of one slice, with gradient where it is enabled."""
        if rows.reference and not estimator.pulled_to_references(method):
            rows = rows.replace(reference={})  # compared only: rounding does no harm, and what sampling computed may be used again
        return policy.evaluate(rows, needs, **self.options(method, needs))

    @staticmethod
    def options(method: Method, needs: frozenset[str]) -> JsonDict:
        """Further arguments of `Policy.evaluate` for this method: mostly none."""
        probes = [probe for _, part in method.parts() for probe in part.probes() if probe.name in needs]
        found: JsonDict = {"view": method.view} if method.view is not None else {}
        return found | ({"probes": tuple(dict.fromkeys(probes))} if probes else {})

    def columns(
        self, method: Method, policy: Policy, rows: Trajectories, needs: frozenset[str], chosen: Tensor | None = None
    ) -> View:
        """Columns of a policy, without gradient, slice by slice; rows that are not among the ``chosen`` stay zero.

        Of a team each computes its share.
        """
        cost = policy.slice_tokens(rows)
        found: dict[str, Tensor] = {"logp": torch.zeros_like(rows.sampled)}
        chosen = torch.arange(rows.rows) if chosen is None else chosen
        shares = deal_rows(rows, chosen, cost, "sequence", self.team.size)
        mine = shares[self.team.rank]
        # Who has no row looks at one all the same: which columns there are is known by then.
        looked_at = mine if len(mine) else chosen[:1]

        def look(index: Tensor) -> None:
            own: Tensor | slice = slice(None) if len(index) == rows.rows else index.to(rows.sampled.device)
            for name, column in self.evaluate(method, policy, rows.take_rows(own), needs).columns().items():
                place = found.setdefault(name, torch.zeros(rows.sampled.shape, dtype=column.dtype, device=column.device))
                place[own] = column if len(mine) else 0

        with torch.no_grad():
            while True:
                cut = pack(rows, looked_at, cost, policy.token_budget(), "sequence", policy.pads)
                failed = each_slice(rows, cut, cost, "sequence", look)
                if failed is None:
                    break
                cut_smaller(policy, failed)
            if in_parts(policy) and len(chosen):
                others = [share if len(share) else chosen[:1] for share in shares]
                for _ in range(passes_of_others(rows, others, cost, policy, "sequence") - len(cut)):
                    self.evaluate(method, policy, rows.take_rows(chosen[:1].to(rows.sampled.device)), needs)
        return View.of(found if self.team.size == 1 else {name: self.team.sum(column) for name, column in found.items()})

    def before_step(self, method: Method, rows: Trajectories, moves: bool) -> Trajectories:
        """One pass for the columns that parts read before the first update, and one for each reference that is read there.

        Args:
            moves: whether the policy will have moved away from the proximal one by the last update.
        """
        if method.view is not None:
            rows = method.view.annotate(self.policy, rows)
        needs = method.needs()
        early = frozenset(need.split(".")[1] for need in needs if need.startswith("proximal."))
        known = {} if rows.proximal is None else rows.proximal.columns()
        if early - set(known) or (not known and moves and estimator.filled(method.ratio).branches()):
            chosen = torch.arange(rows.rows) if early else estimator.rows_with_signal(method, rows)
            found = self.columns(method, self.policy, rows, early - {"logp"}, chosen).columns()
            rows = rows.replace(proximal=View.of({**found, **known}))
        return self._with_references(method, rows, estimator.early_references(method))

    def after_filters(self, method: Method, rows: Trajectories) -> Trajectories:
        """The rows that learn, with the columns of the references that only the update compares with."""
        late = estimator.references(method) - estimator.early_references(method)
        return estimator.clean(self._with_references(method, rows, late)) if late and rows.rows else rows

    def compared(self, method: Method, rows: Trajectories) -> Trajectories:
        """Rows that are not learned from, with the columns of the start if the method compares with it."""
        return rows if method.view is not None else self._with_references(method, rows, estimator.references(method) & {START})

    def _with_references(self, method: Method, rows: Trajectories, names: frozenset[str]) -> Trajectories:
        views = {name: self.reference(method, name, rows) for name in sorted(names)}
        return rows.replace(reference={**rows.reference, **views}) if names else rows

    def reference(self, method: Method, name: str, rows: Trajectories) -> View:
        """The columns of a reference."""
        policy, part = self.references.compared(method, name), reference_parts(method)[name]
        seen = part.sees(rows)
        if self.cache is None or policy is not self.references.first or method.view is not None:
            return self.columns(method, policy, seen, frozenset())

        def compute(missing: Tensor) -> Tensor:  # what is missing where they are kept: with rank 0
            wanted = torch.zeros(seen.rows).index_fill_(0, missing, float(self.team.rank == 0))
            return self.columns(method, policy, seen, frozenset(), self.team.sum(wanted).nonzero().squeeze(1)).logp

        found = self.cache.logp(seen, compute)
        return View(self.team.sum(found if self.team.rank == 0 else torch.zeros_like(found)))

    def before_update(self, method: Method, rows: Trajectories, moved: bool = False) -> Trajectories:
        """The current policy's columns, without gradient, for parts that read them before the update is cut.

        Args:
            moved: that an update which the rows do not know of came before in this step.
        """
        early = estimator.early_columns(method)
        if not early:
            return rows
        moved |= rows.draw > 0 or has_updates_before(method)
        if not moved and rows.proximal is not None and early <= set(rows.proximal.columns()):
            return rows.replace(current=rows.proximal)
        return rows.replace(current=self.columns(method, self.policy, rows, early - {"logp"}))

    def kl_to_start(self, rows: Trajectories, method: Method) -> Metrics:
        """Of the policy that sampled. Its recorded log-probabilities are used: the proximal ones may lack rows without signal.

        Where nobody sampled any of the rows, or in another precision, it is measured on some of them, with the policy's own
        log-probabilities.
        """
        sampled = rows.fresh()
        if bool(sampled.any()) or not rows.rows:  # older rows and reference answers say nothing about it
            rows = rows.take_rows(sampled) if "source" in rows.label else rows
        else:
            rows = rows.take_rows(slice(None, None, WATCHED_SHARE))
        approximate = rows.approximate is not None and bool(rows.approximate.any())
        if approximate:
            rows = rows.take_rows(spread(rows.rows, WATCHED_ROWS))
        first = self.references.start
        if START in rows.reference and method.view is None:
            watched, start = rows, rows.reference[START]
        elif self.watch_kl and first is not None:
            watched = rows.take_rows(spread(rows.rows, WATCHED_ROWS))
            start = self.columns(method.derive(policy=None), first, watched, frozenset())
        else:
            return {}
        now = watched.behavior.logp
        if watched.rows and (approximate or not bool(watched.fresh().any())):
            now = self.columns(method.derive(policy=None), self.policy, watched, frozenset()).logp
        total, count = divergence(now, start.logp, watched)
        return {"kl_start": float(total / count.clamp_min(1))}

    @staticmethod
    def update_tells_kl(method: Method, rows: Trajectories) -> bool:
        """Whether a step's only update computes all that the KL to the start is made of: nobody sampled the rows, what the start
        says of them is known, and the update asks what the policy says. A controller may ask where no update is made."""
        known = START in rows.reference and method.view is None and not method.controller
        return known and not bool(rows.fresh().any())


def divergence(now: Tensor, start: Tensor, rows: Trajectories) -> tuple[Tensor, Tensor]:
    """The KL of the policy to the start on the decisions of some rows, summed up, and their number."""
    return (kl_estimate(now, start, "k3") * rows.sampled).sum(), rows.sampled.sum()
