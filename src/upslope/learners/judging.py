"""What a method says of decisions whose columns the policy has given: the slope of its loss in each column, and what to tell of it.

`column_slopes` is that for any slice. `Judge` is the same for updates on single decisions, of which a step makes thousands, each
too small for anything but the calls to cost: it records the first of them and repeats the record (`recording`) where it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.learners.recording import Program, Tape
from upslope.learners.sight import Sight
from upslope.learners.slicing import Share
from upslope.learners.tally import Tally, tally_slice
from upslope.learners.witness import Witness
from upslope.objective import estimator
from upslope.types import UNCUT, Batch, Method, Trajectories, View


def leaf(column: Tensor) -> Tensor:
    """The column as the objective sees it: its gradient stops here, to go through the policy in one pass afterwards."""
    return column.detach().requires_grad_()


def column_slopes(
    method: Method, piece: Trajectories, leaves: View, tally: Tally, witness: Witness | None = None
) -> dict[str, Tensor]:
    """Gradient of a slice's loss in each of the policy's columns that it depends on; what the slice showed goes to the tally."""
    proximal = piece.proximal or leaves.map(Tensor.detach)
    piece = piece.replace(current=leaves, proximal=proximal)
    losses, notes = estimator.decision_losses(method, piece)
    columns = leaves.columns()
    found = torch.autograd.grad(losses.sum(), list(columns.values()), allow_unused=True)
    with torch.no_grad():
        tally_slice(tally, piece, losses, notes, found[0])
        if witness is not None:
            witness.saw(method, piece, notes)
    return {name: slope for name, slope in zip(columns, found, strict=True) if slope is not None}


class _Outcome(NamedTuple):
    """What an update came to, as tensors that can be recorded."""

    alive: Tensor
    """Whether there is anything to learn from."""
    slopes: dict[str, Tensor]
    told: list[tuple[str, Tensor | float, Tensor | float]]
    """Entries of the tally."""

    def tensors(self) -> list[Tensor]:
        numbers = [number for _, *pair in self.told for number in pair if isinstance(number, Tensor)]
        return [self.alive, *self.slopes.values(), *numbers]

    def arrays(self) -> list[np.ndarray]:
        return [tensor.detach().numpy() for tensor in self.tensors()]


class Judge:
    """One method in one step, whose knobs and states stay as they are.

    The first update of each size is recorded, the second computed both ways, and from the third on only the record is repeated
    if both agreed: what no check of the record alone can see, a value taken past torch, would show there. Methods that draw random
    numbers or look ahead differ from update to update in more than columns and are computed as they are written.
    """

    def __init__(self, method: Method, sight: Sight, needs: frozenset[str]) -> None:
        self.method, self.sight, self.needs = method, sight, needs
        self._repeats = "key" not in method.needs() and not estimator.early_columns(method)
        self._records: dict[int, _Record] = {}
        self._whole: Trajectories | None = None
        self._arrays: dict[str, np.ndarray] = {}

    def __call__(self, share: Share, columns: Mapping[str, np.ndarray], draw: int) -> tuple[dict[str, np.ndarray], Told]:
        """Slopes of the loss in the policy's columns on a share, none if it has nothing to learn from; and what it showed.

        Args:
            draw: The number of the update.
        """
        record = self._records.get(share.end - share.begin)
        if record is not None and record.agreed:
            values = self._repeat(record, share, columns)
            return record.slopes(values), Told(record.entries, values)
        leaves = View.of({name: torch.from_numpy(column).requires_grad_() for name, column in columns.items()})
        rows = self.sight.look_ahead(self.method, share.rows().replace(draw=draw))
        if record is None and self._repeats:
            outcome = self._recorded(share, rows, leaves)
        else:
            outcome = self._as_written(rows, leaves)
            if record is not None and record.program is not None:
                record.compare(outcome, self._repeat(record, share, columns))
        written, values = _Record([], outcome, None), tuple(outcome.arrays())
        return written.slopes(values), Told(written.entries, values)

    def _as_written(self, rows: Trajectories, leaves: View) -> _Outcome:
        batch: Trajectories = estimator.begin_update(self.method, rows).replace(current=None)  # type: ignore[assignment]
        tally = Tally()
        tally.add("learning", 0.0, batch.sampled.sum())
        alive = (~estimator.silent_rows(self.method, batch)).any()
        slopes = column_slopes(self.method, batch, leaves, tally)
        told = [(name, *pair) for name in tally.totals for pair in zip(tally.totals[name], tally.counts[name], strict=True)]
        return _Outcome(alive, slopes, told)

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

    def _repeat(self, record: _Record, share: Share, current: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        if self._whole is not share.whole:
            self._whole, self._arrays = share.whole, {name: column.numpy() for name, column in _columns(share.whole).items()}
        assert record.program is not None
        begin, end = share.begin, share.end
        return record.program(*[current[name] if now else self._arrays[name][begin:end] for name, now in record.inputs])


class Told(NamedTuple):
    """What an update showed, not yet added up."""

    entries: list[tuple[Any, ...]]
    """Name, total and count; an integer stands for the value at that place."""
    values: tuple[Any, ...]

    def add_to(self, tally: Tally) -> None:
        for name, *pair in self.entries:
            tally.add(name, *(float(self.values[number]) if isinstance(number, int) else number for number in pair))


class _Record:
    """A recorded update: its program, until it is found to be wrong, and the form of its outcome.

    Args:
        inputs: Name of each input, and whether it is a column of the current policy.
    """

    def __init__(self, inputs: list[tuple[str, bool]], outcome: _Outcome, program: Program | None) -> None:
        self.inputs = [] if program is None else [inputs[position] for position in program.reads]
        self.columns = list(outcome.slopes)
        place = count(1 + len(self.columns))
        self.entries = [
            (name, *(next(place) if isinstance(number, Tensor) else float(number) for number in (total, observed)))
            for name, total, observed in outcome.told
        ]
        self.program, self.agreed = program, False

    def slopes(self, values: tuple[Any, ...]) -> dict[str, np.ndarray]:
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
