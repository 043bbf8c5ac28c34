"""Updates as CPU graphs: what a CPU computes of an update is recorded once and replayed on other rows.

`graphed_updates` does so with blocks of updates on a GPU. Here each kind of update, by where it stands in the cycle of delays, is a
recording of its own, and none is trusted before it was held against the update itself: on other rows and random numbers both must
leave the very same bits in all that the update changes. So metrics and weights are those of updates that are made one by one,
wherever a run is stopped and resumed.

Only the parts and networks of this library are recorded, which a test does with every method. What Python does in a user's own on
the side, as with numbers read by ``tolist`` or a counter, no recording shows. ``--plain`` does without, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.errors import Remark
from upslope.learners.graphed_updates import Asked, Learn, Noise, Sums, cycle_of, listed, placed, recordable, share_of_rows
from upslope.objective import estimator
from upslope.objective.base import Controller
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.runtime.cpu_graph import TOO_LARGE, CPUGraph
from upslope.runtime.torch_private import foreach_copy_
from upslope.types import Method, Trajectories
from upslope.types.calling import is_users_own

WARM = 4
"""Updates of a kind that are made as they come: what they set up (moments, caches) is there by then. Short runs record nothing."""
KEEP_MOVING = "knobs keep moving"
MOST_MOVES = 3
"""Times that knobs may move in a run before nothing is recorded any more: schedules move them every step."""
LONGEST_CYCLE = 12
"""Kinds of updates up to which each is recorded."""


class _Drawn(NamedTuple):
    """What one update learns from."""

    rows: Trajectories
    """Of several updates, one behind the other."""
    columns: list[Tensor]
    """Their tensors."""
    place: int
    """Of this update among them, counted from 0."""
    together: int
    noise: Noise
    number: int

    def share(self) -> Trajectories:
        return share_of_rows(self.rows, self.place, self.together)


class _Kind:
    """The updates at one place of the cycle."""

    def __init__(self) -> None:
        self.made = 0
        self.asked: Asked = {}
        """Where each random number that they ask for is put."""
        self.graph: CPUGraph | None = None
        self.metrics: list[str] = []
        """Of what the graph gives."""
        self.columns: list[int] = []
        """Those of the rows that it looks at."""
        self.trusted = False


class CPUGraphedUpdates:
    """Updates one after the other, replayed where that is known to be the same.

    Args:
        learn: One update.
    """

    def __init__(self, policy: NetworkPolicy, method: Method, learn: Learn):
        self.learn, self._policy, self.cycle = learn, policy, cycle_of(method, policy)
        remember = [part for part in estimator.stateful(method).values() if not isinstance(part, Controller)]
        fixed = recordable(method) and not method.references and not remember and not _has_users_own(method, policy)
        self.records = fixed and self.cycle <= LONGEST_CYCLE and not policy.plain
        self._moves = 0
        self.refused = ""
        """Why updates are no longer replayed, where that showed as they were recorded or compared."""
        self.forget()

    def knobs_moved(self) -> None:
        """What was recorded no longer holds; where that goes on, recordings are not worth their time."""
        self.forget()
        self._moves += 1
        if self.records and self._moves > MOST_MOVES:
            self._refuse(KEEP_MOVING)

    def forget(self) -> None:
        """Nothing is recorded: what was no longer holds."""
        self.kinds: dict[int, _Kind] = {}
        self._rows: Trajectories | None = None
        """An update's rows, where recordings look for them."""
        self._columns: list[Tensor] = []

    def run(self, rows: Trajectories, noises: Sequence[Noise], first: int, sums: Sums) -> None:
        """The updates from number ``first`` on, each on its share of the rows."""
        columns = listed(rows) if self.records else []
        for place, noise in enumerate(noises):
            drawn = _Drawn(rows, columns, place, len(noises), noise, first + place)
            if self.records:
                self._one(drawn, sums)
            else:
                self.learn(drawn.share(), noise, drawn.number, sums)
            self._policy.follow(drawn.number, rarely=True)

    def _one(self, drawn: _Drawn, sums: Sums) -> None:
        """One update: as it comes, as it is recorded, beside its recording, or replayed."""
        if self._rows is not None and not self._fits(drawn):
            self.forget()
        kind = self.kinds.setdefault(drawn.number % self.cycle, _Kind())
        kind.made += 1
        if kind.made <= WARM:
            self.learn(drawn.share(), _noted(drawn.noise, kind.asked), drawn.number, sums)
            return
        self._fill(kind, drawn)
        if kind.graph is None:
            self._record(kind, drawn.number, sums)
        elif kind.trusted:
            kind.graph.replay()
            _add(sums, kind.metrics, [value.clone() for value in kind.graph.results])
        else:
            self._compare(kind, kind.graph, drawn.number, sums)

    def _fits(self, drawn: _Drawn) -> bool:
        """Whether these rows lie as those did that were recorded."""
        return len(drawn.columns) == len(self._columns) and all(
            into.dtype == column.dtype and into.shape[1:] == column.shape[1:] and len(into) * drawn.together == len(column)
            for into, column in zip(self._columns, drawn.columns, strict=True)
        )

    def _fill(self, kind: _Kind, drawn: _Drawn) -> None:
        """Puts rows and random numbers where they are looked for."""
        if self._rows is None:
            self._rows = drawn.share()._map(lambda column: column.clone(memory_format=torch.contiguous_format))
            self._columns = listed(self._rows)
        wanted = kind.columns or range(len(self._columns))
        sizes = [len(self._columns[each]) for each in wanted]
        pieces = [drawn.columns[each].narrow(0, drawn.place * size, size) for each, size in zip(wanted, sizes, strict=True)]
        foreach_copy_([self._columns[each] for each in wanted], pieces)
        self._rows = self._rows.replace(progress=drawn.rows.progress)
        for key, into in kind.asked.items():
            into.copy_(drawn.noise(*key))

    def _learn_there(self, kind: _Kind, number: int) -> tuple[list[str], list[Tensor]]:
        """The update on what `_fill` has put there; its metrics by name."""
        assert self._rows is not None
        sums = Sums()
        self.learn(self._rows, placed(kind.asked), number, sums)
        several = [(name, value) for name, values in sums.values.items() for value in values]
        return [name for name, _ in several], [value for _, value in several]

    def _record(self, kind: _Kind, number: int, sums: Sums) -> None:
        def work() -> list[Tensor]:
            kind.metrics, values = self._learn_there(kind, number)
            return values

        kind.graph = graph = CPUGraph(work)
        _add(sums, kind.metrics, [value.clone() for value in graph.results])
        if graph.refused:
            self._refuse(graph.refused)
            return
        kind.columns = [each for each, column in enumerate(self._columns) if column.data_ptr() in graph.looks_at]

    def _compare(self, kind: _Kind, graph: CPUGraph, number: int, sums: Sums) -> None:
        """Makes the update, replays it from where it began, and sees whether its recording leaves the same."""
        before = _copies(graph.changes)
        metrics, values = self._learn_there(kind, number)
        values = _copies(values)
        _add(sums, metrics, values)
        after = _copies(graph.changes)
        foreach_copy_(graph.changes, before)
        try:
            graph.replay()
            same = metrics == kind.metrics and all(map(_same_bits, graph.results, values))
            kind.trusted = same and all(map(torch.equal, graph.changes, after))
        except RuntimeError as problem:  # an operation that wants to be called otherwise
            self._refuse(str(problem).splitlines()[0])
        else:
            if not kind.trusted:
                self._refuse(f"update {number} left other numbers than its recording")
        foreach_copy_(graph.changes, after)

    def _refuse(self, reason: str) -> None:
        self.forget()
        self.records, self.refused = False, reason
        if reason not in (KEEP_MOVING, TOO_LARGE):  # of these nothing is gained by a recording
            warnings.warn(Remark(f"updates cannot be recorded ({reason}); they are made one by one, slower."), stacklevel=2)


def _has_users_own(method: Method, policy: NetworkPolicy) -> bool:
    """Whether a user wrote some of what an update computes."""
    networks = [each for each in policy.modules() if isinstance(each, FlatNetwork)]
    return any(is_users_own(part) for _, part in method.parts()) or any(each.is_users_own for each in networks)


def _noted(noise: Noise, asked: Asked) -> Noise:
    """The same random numbers; what was asked for is noted."""

    def take(kind: str, name: str, shape: tuple[int, ...]) -> Tensor:
        found = noise(kind, name, shape)
        asked[kind, name, shape] = found.clone()
        return found

    return take


def _add(sums: Sums, names: Sequence[str], values: Sequence[Tensor]) -> None:
    for name, value in zip(names, values, strict=True):
        sums.add(name, value)


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.clone() for each in tensors]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
