"""The objective of decisions: the gradient of a method's loss in the columns of single decisions, recorded once and replayed.

A step makes thousands of updates on single decisions, each too small for anything but the calls to cost. `DecisionObjective`
records the operations of the first of them and replays the record (`replay`) where it can; it gives what `column_grads` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.learners.metrics import MetricSums, PendingMetrics
from upslope.learners.policy_views import PolicyViews
from upslope.learners.updates.column_grads import column_grads
from upslope.learners.updates.replay import Program, Tape
from upslope.learners.updates.slicing import Share
from upslope.objective import estimator
from upslope.types import UNCUT, Batch, Method, Trajectories, View


class _Outcome(NamedTuple):
    """What an update came to, as tensors that can be recorded."""

    learns: Tensor
    """Whether there is anything to learn from."""
    grads: dict[str, Tensor]
    entries: list[tuple[str, Tensor | float, Tensor | float]]
    """Entries of the metric sums."""

    def tensors(self) -> list[Tensor]:
        numbers = [number for _, *pair in self.entries for number in pair if isinstance(number, Tensor)]
        return [self.learns, *self.grads.values(), *numbers]

    def arrays(self) -> list[np.ndarray]:
        return [tensor.detach().numpy() for tensor in self.tensors()]


class DecisionObjective:
    """One method in one step, whose knobs and states stay as they are.

    The first update of each size is recorded, the second computed both ways, and from the third on only the record is repeated
    if both agreed: what no check of the record alone can see, a value taken past torch, would show there. Methods that draw random
    numbers or read the current policy ahead differ from update to update in more than columns and are computed as they are written.

    Args:
        replays: whether it may record at all.
    """

    def __init__(self, method: Method, views: PolicyViews, needs: frozenset[str], replays: bool = True) -> None:
        self.method, self.views, self.needs = method, views, needs
        self._repeats = replays and "key" not in method.needs() and not estimator.early_columns(method)
        self._records: dict[int, _Record] = {}
        self._whole: Trajectories | None = None
        self._arrays: dict[str, np.ndarray] = {}

    def __call__(self, share: Share, columns: Mapping[str, np.ndarray], draw: int) -> tuple[dict[str, np.ndarray], PendingMetrics]:
        """Gradients of the loss in the policy's columns on a share, none if it has nothing to learn from; and what it showed.

        Args:
            draw: The number of the update.
        """
        record = self._records.get(share.end - share.begin)
        if record is not None and record.agreed:
            values = self._repeat(record, share, columns)
            return record.grads(values), PendingMetrics(record.entries, values)
        leaves = View.of({name: torch.from_numpy(column).requires_grad_() for name, column in columns.items()})
        rows = self.views.before_update(self.method, share.rows().replace(draw=draw))
        if record is None and self._repeats:
            outcome = self._recorded(share, rows, leaves)
        else:
            outcome = self._as_written(rows, leaves)
            if record is not None and record.program is not None:
                record.compare(outcome, self._repeat(record, share, columns))
        written, values = _Record([], outcome, None), tuple(outcome.arrays())
        return written.grads(values), PendingMetrics(written.entries, values)

    def _as_written(self, rows: Trajectories, leaves: View) -> _Outcome:
        batch = estimator.begin_update(self.method, rows).replace(current=None)
        sums = MetricSums()
        sums.add("learning", 0.0, batch.sampled.sum())
        learns = (~estimator.silent_rows(self.method, batch)).any()
        grads = column_grads(self.method, batch, leaves, sums)
        entries = [(name, *pair) for name in sums.totals for pair in zip(sums.totals[name], sums.counts[name], strict=True)]
        return _Outcome(learns, grads, entries)

    def _recorded(self, share: Share, rows: Trajectories, leaves: View) -> _Outcome:
        # A column of one value in all rows of the step has it in every share: the record may take it as given.
        varies = {name for name, column in _columns(share.whole).items() if not bool((column == column[:1]).all())}
        columns, current = {name: column for name, column in _columns(rows).items() if name in varies}, leaves.columns()
        with Tape() as tape:
            outcome = self._as_written(rows, leaves)
        program = tape.program([*columns.values(), *current.values()], outcome.tensors())
        inputs = [(name, False) for name in columns] + [(name, True) for name in current]
        self._records[share.end - share.begin] = _Record(inputs, outcome, program)
        return outcome

    def _repeat(self, record: _Record, share: Share, current: Mapping[str, np.ndarray]) -> tuple[object, ...]:
        if self._whole is not share.whole:
            self._whole, self._arrays = share.whole, {name: column.numpy() for name, column in _columns(share.whole).items()}
        assert record.program is not None
        begin, end = share.begin, share.end
        return record.program(*[current[name] if now else self._arrays[name][begin:end] for name, now in record.inputs])


class _Record:
    """A recorded update: its program, until it is found to be wrong, and the form of its outcome.

    Args:
        inputs: Name of each input, and whether it is a column of the current policy.
    """

    def __init__(self, inputs: list[tuple[str, bool]], outcome: _Outcome, program: Program | None) -> None:
        self.inputs = [] if program is None else [inputs[position] for position in program.reads]
        self.columns = list(outcome.grads)
        place = count(1 + len(self.columns))
        self.entries = [
            (name, *(next(place) if isinstance(number, Tensor) else float(number) for number in (total, observed)))
            for name, total, observed in outcome.entries
        ]
        self.program, self.agreed = program, False

    def grads(self, values: tuple[Any, ...]) -> dict[str, np.ndarray]:
        return dict(zip(self.columns, values[1:], strict=False)) if values[0] else {}

    def compare(self, outcome: _Outcome, values: tuple[Any, ...]) -> None:
        """Whether the record gives on other columns what the method, as it is written, gives on them; if not, it is dropped."""
        other = _Record([], outcome, None)
        self.agreed = (
            other.columns == self.columns
            and other.entries == self.entries
            and all(
                np.allclose(value, wanted, rtol=1e-3, atol=1e-6, equal_nan=True)
                for value, wanted in zip(values, outcome.arrays(), strict=True)
            )
        )
        if not self.agreed:
            self.program = None


def _columns(batch: Batch) -> dict[str, Tensor]:
    """Every tensor that a part may read, by its place."""
    found: dict[str, Tensor] = {}
    for field, value in batch.__dict__.items():
        columns = value.columns() if isinstance(value, View) else value
        if isinstance(columns, Tensor):
            found[field] = columns
        elif isinstance(columns, Mapping) and field not in UNCUT:
            for name, column in columns.items():
                inside = column.columns() if isinstance(column, View) else {"": column}
                found |= {f"{field}.{name}.{key}": tensor for key, tensor in inside.items()}
    return found
