"""What a rollout has assigned and the learner has not taken yet; of a run that samples ahead, over a stop too."""

from __future__ import annotations

from typing import Any

import torch

from upslope.objective.base import State
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.pool import Fulfilled, Pool
from upslope.types import Assignment, Trajectories, pack_rows, rows_of

Place = tuple[int, int]
"""A step and an attempt."""


class UnderWay:
    """Assignments on their way through a pool.

    Args:
        pool: Who fulfils them.
    """

    def __init__(self, pool: Pool):
        self.pool = pool
        self.shares = 1
        """Pieces that each request is cut into."""
        self.dates_rows = False
        """Whether rows say which weights sampled them: where some may be older than the step."""
        self._assigned: dict[Place, list[Assignment]] = {}
        self._kept: dict[Place, list[Fulfilled]] = {}
        """Of those, what a checkpoint had already."""

    def assigned(self, step: int, attempt: int) -> list[Assignment]:
        """What was assigned there and not taken; nothing where nothing was."""
        return self._assigned.get((step, attempt), [])

    def assign(self, whole: Assignment, policy: Any) -> list[Assignment]:
        """Has a request sampled, with the policy as it is now."""
        cut = self._assigned[whole.step, whole.attempt] = whole.cut(self.shares)
        self.pool.publish(whole.version, policy.weights)
        self.pool.give(cut)
        return cut

    def take(self, step: int, attempt: int) -> tuple[list[Assignment], list[Fulfilled]]:
        """What was assigned, and what came of it; then it is forgotten."""
        assignments, done = self._assigned[step, attempt], self._done((step, attempt))
        del self._assigned[step, attempt]
        if self._kept.pop((step, attempt), None) is None:
            for each in assignments:
                self.pool.forget(each)
        return assignments, done

    def _done(self, place: Place) -> list[Fulfilled]:
        return self._kept.get(place) or [self.pool.result(each) for each in self._assigned[place]]

    def dated(self, assignment: Assignment, found: Fulfilled) -> Trajectories:
        """The rows, each decision with the version of the weights that drew it, if that is asked for."""
        rows = found.rows
        if not self.dates_rows or rows.version is not None:
            return rows
        return rows.replace(version=torch.full_like(rows.sampled, found.version, dtype=torch.int64))

    def state(self) -> State:
        """All that is assigned, with its rows: a checkpoint waits for those that are not there yet."""
        if not self._assigned:
            return {}
        return {
            "under_way": [
                {"assignment": each.table(), "rows": packed(found.rows), "told": found.told, "version": found.version}
                for place, assignments in self._assigned.items()
                for each, found in zip(assignments, self._done(place), strict=True)
            ]
        }

    def load_state(self, state: State, device: torch.device | str) -> None:
        self._assigned, self._kept = {}, {}
        for each in state.get("under_way", ()):
            assignment = Assignment.from_table(each["assignment"])
            place = assignment.step, assignment.attempt
            self._assigned.setdefault(place, []).append(assignment)
            found = Fulfilled(unpacked(each["rows"]).to(device), each["told"], each["version"])
            self._kept.setdefault(place, []).append(found)


def packed(rows: Trajectories) -> State:
    """Rows of text as nested dicts of tensors and plain data; `unpacked` undoes it."""
    return {**pack_rows(rows), "info": rows.info}


def unpacked(found: State) -> Trajectories:
    return rows_of({name: value for name, value in found.items() if name != "info"}, TextInputs).replace(info=found["info"])
