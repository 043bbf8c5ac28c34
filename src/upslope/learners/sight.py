"""Looking without learning: columns of a policy and of those it is compared with, and how far it has moved from its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from upslope.learners.slicing import pack
from upslope.objective import estimator
from upslope.objective.base import Controller, State
from upslope.objective.references import Snapshot
from upslope.objective.regularize import kl_estimate
from upslope.types import Method, Metrics, Trajectories, View

WATCHED_ROWS = 64
"""Rows on which the KL to the start is measured when the method itself does not need it."""


class Policy(Protocol):
    """What a learner asks of a policy."""

    cut: str
    pads: bool
    """Whether a slice costs as much as its longest row in each row."""

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = ..., **how: Any) -> View:
        """Columns of the rows; ``through`` (the method's policy part) and ``probes`` are given only where a method has them."""

    def slice_tokens(self, rows: Trajectories) -> Tensor: ...
    def token_budget(self) -> int: ...
    def trainable(self) -> dict[str, list[nn.Parameter]]: ...
    def frozen_copy(self) -> Any: ...
    def weights(self) -> dict[str, Tensor]: ...
    def load_weights(self, weights: dict[str, Tensor]) -> None: ...


class DecisionPolicy(Policy, Protocol):
    """A policy that is cut by decisions: its updates are many and small, and it goes forward and back without torch's graph."""

    def look(self, rows: Trajectories, needs: frozenset[str]) -> Look:
        """The columns of `evaluate`, as arrays."""

    def pull(self, look: Any, slopes: Mapping[str, np.ndarray]) -> float:
        """Sets the parameters' gradients, given those of a look's columns, and gives the length of all together."""


class Look(Protocol):
    columns: Mapping[str, np.ndarray]


class Sight:
    """The policy and those it is compared with; `columns` looks through any of them without gradient.

    Args:
        start: the policy as the run began, for methods or measurements that compare with it.
    """

    def __init__(self, method: Method, policy: Policy, start: Any, watch_kl: bool):
        self.policy, self.start, self.watch_kl = policy, start, watch_kl
        kept = [name for name, part in method.references if isinstance(part, Snapshot)]
        # The newer of the two is the policy as it is now, on the day it is taken: only the older one says anything.
        self.snapshots: dict[str, list[Any]] = {name: [policy.frozen_copy(), policy.frozen_copy()] for name in kept}
        self.renewed_start = False

    def evaluate(self, method: Method, policy: Any, rows: Trajectories, needs: frozenset[str]) -> View:
        """Columns of one slice as the method wants them seen, with gradient where it is enabled."""
        return policy.evaluate(rows, needs, **self.manner(method, needs))

    @staticmethod
    def manner(method: Method, needs: frozenset[str]) -> dict[str, Any]:
        """How a policy is to evaluate rows for this method, beside what it is asked for: mostly nothing."""
        probes = [probe for _, part in method.parts() for probe in part.probes() if probe.name in needs]
        how: dict[str, Any] = {"through": method.policy} if method.policy is not None else {}
        return how | ({"probes": tuple(dict.fromkeys(probes))} if probes else {})

    def columns(self, method: Method, policy: Any, rows: Trajectories, needs: frozenset[str], seen: Tensor | None = None) -> View:
        """Columns of a policy, without gradient; rows that are not among ``seen`` stay zero."""
        cost = policy.slice_tokens(rows)
        found: dict[str, Tensor] = {"logp": torch.zeros_like(rows.sampled)}
        with torch.no_grad():
            for index in pack(
                rows, torch.arange(rows.rows) if seen is None else seen, cost, policy.token_budget(), "sequence", policy.pads
            ):
                for name, column in self.evaluate(method, policy, rows.take_rows(index), needs).columns().items():
                    place = found.setdefault(name, torch.zeros(rows.sampled.shape, dtype=column.dtype, device=column.device))
                    place[index] = column
        return View.of(found)

    def look(self, method: Method, rows: Trajectories, moves: bool) -> Trajectories:
        """One pass for the columns that parts read before the update, and one for each policy they compare with.

        Args:
            moves: whether the policy will have moved away from the proximal one by the last update.
        """
        if method.policy is not None:
            rows = method.policy.noted(self.policy, rows)
        needs = method.needs()
        early = frozenset(need.split(".")[1] for need in needs if need.startswith("proximal."))
        known = {} if rows.proximal is None else rows.proximal.columns()
        if early - set(known) or (not known and moves and method.ratio.branches()):
            seen = torch.arange(rows.rows) if early else estimator.rows_with_signal(method, rows)
            found = self.columns(method, self.policy, rows, early - {"logp"}, seen).columns()
            rows = rows.replace(proximal=View.of({**found, **known}))
        names = sorted({need.split(".")[1] for need in needs if need.startswith("reference.")})
        if names:
            parts = dict(method.references)
            views = {name: self._reference(method, name, parts.get(name), rows) for name in names}
            rows = rows.replace(reference={**rows.reference, **views})
        return rows

    def _reference(self, method: Method, name: str, part: Any, rows: Trajectories) -> View:
        if part is None and name == "start":
            return self.columns(method, self.start, rows, frozenset())
        if isinstance(part, Snapshot):
            return self.columns(method, self.snapshots[name][0], rows, frozenset())
        return self.columns(method, self.policy, part.sees(rows), frozenset())

    def look_ahead(self, method: Method, rows: Trajectories) -> Trajectories:
        """The current policy's columns, without gradient, for parts that read them before the update is cut."""
        early = estimator.early_columns(method)
        if not early:
            return rows
        moved = rows.draw > 0 or bool(method.terms)  # a term's own update may have come before
        if not moved and rows.proximal is not None and early <= set(rows.proximal.columns()):
            return rows.replace(current=rows.proximal)
        return rows.replace(current=self.columns(method, self.policy, rows, early - {"logp"}))

    def kl_to_start(self, rows: Trajectories, method: Method) -> Metrics:
        """Of the policy that sampled. Its recorded log-probabilities are used: the proximal ones may lack rows without signal."""
        if "source" in rows.label:  # older rows and references say nothing about it
            rows = rows.take_rows(rows.fresh())
        if "start" in rows.reference and method.policy is None:
            seen, start = rows, rows.reference["start"]
        elif self.watch_kl and self.start is not None:
            seen = rows.take_rows(torch.linspace(0, rows.rows - 1, min(rows.rows, WATCHED_ROWS)).long().unique())
            start = self.columns(method.derive(policy=None), self.start, seen, frozenset())
        else:
            return {}
        kl = kl_estimate(seen.behavior.logp, start.logp, "k3") * seen.sampled
        return {"kl_start": float(kl.sum() / seen.sampled.sum().clamp_min(1))}

    # -- the policies it is compared with ------------------------------------------------------------------------------

    def renew(self, method: Method, states: dict[str, State], step: int, progress: float) -> None:
        """Takes the snapshots that are due before this step."""
        due = {name for name, part in method.references if isinstance(part, Snapshot) and step > 1 and (step - 1) % part.every == 0}
        for path, part in estimator.remembering(method).items():
            if isinstance(part, Controller):
                due |= set(part.snapshots(states[path], progress))
        for name in due:
            if name == "start":
                if self.start is not None:  # else nobody looks at it
                    self.start, self.renewed_start = self.policy.frozen_copy(), True
            else:
                self.snapshots[name] = [self.snapshots[name][1], self.policy.frozen_copy()]

    def state(self) -> State:
        kept = {name: [snapshot.weights() for snapshot in pair] for name, pair in self.snapshots.items()}
        return {"snapshots": kept, "start": self.start.weights() if self.renewed_start else {}}

    def load_state(self, state: State) -> None:
        for name, saved in state["snapshots"].items():
            for snapshot, weights in zip(self.snapshots[name], saved, strict=True):
                snapshot.load_weights(weights)
        if state["start"]:
            self.renewed_start = True
            self.start.load_weights(state["start"])
