"""``metrics.jsonl`` as columns of numbers, read on from where the last look ended.

A log may have a million lines and grow while it is read. Lines that ended are taken, once; a line that is no JSON is counted and
passed over; a log that was rewound (a resumed run rewrites it) is read anew. Numbers are kept in four bytes each, and a log too
long for that is kept as the smallest and largest value of every few lines, so that memory stays bounded and spikes stay visible.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from upslope.plain_data import JsonDict

BLOCK = 2**18
"""Bytes read at a time, a few milliseconds' work; also the longest line that is looked at."""
SAMPLES = 1000
WINDOW = 8 * 1024
"""Lines of a preview, and the bytes in which each is looked for."""
MOST_COLUMNS = 512
LONGEST_NAME = 200
MOST_CELLS = 64_000_000
"""Numbers kept of one log (256 MB); when there are more, every four rows become two."""
TOTALS = ("samples", "tokens", "seconds")
"""What is summed up to be an axis."""
TRACE = 256
"""Bytes before the place reached that must still be the same; else the log was written anew."""

Floats = NDArray[np.float64]


class Columns:
    """Numbers by name, a row per record; what is missing or no number is NaN."""

    def __init__(self) -> None:
        self.rows = 0
        self._room = 0
        self._every = 1
        """Records that a row stands for, up to the row `_settled`; behind that it is one."""
        self._settled = 0
        self._values: dict[str, NDArray[Any]] = {}
        self._totals = dict.fromkeys(TOTALS, 0.0)

    @property
    def names(self) -> list[str]:
        return sorted(name for name in self._values if not name.startswith("Σ") and name != "step")

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in list(self._values.values()))

    def column(self, name: str) -> Floats | None:
        """All rows of a column; None if no record had it."""
        column = self._values.get(name)
        return None if column is None else column[: self.rows].astype(np.float64)

    def axis(self, name: str) -> Floats | None:
        """What a curve can be drawn against: the step, or a total so far. None if the records did not count it."""
        if name == "step":
            return self.column("step")
        return self.column(f"Σ{name}") if name in self._values else None

    def add(self, records: list[JsonDict]) -> None:
        """Rows at the end."""
        if not records:
            return
        self._make_room(len(records))
        here = slice(self.rows, self.rows + len(records))
        for name, values in _by_name(records).items():
            if name not in self._values and len(self._values) >= MOST_COLUMNS:
                continue
            with np.errstate(over="ignore"):  # what is too large for four bytes is infinite, and shown as a gap
                self._column(name)[here] = values
            if name in TOTALS:
                totals = self._totals[name] + np.cumsum(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))
                self._column(f"Σ{name}")[here] = totals
                self._totals[name] = float(totals[-1])
        self.rows += len(records)
        if self._every > 1 and self.rows - self._settled >= 2 * self._every:
            self._settled = self._squeeze(self._settled, self.rows, 2 * self._every)
        if self.rows * len(self._values) > MOST_CELLS:
            self._settled = self._squeeze(0, self._settled or self.rows, 4)
            self._every *= 2

    def stretch(self) -> None:
        """Totals as if each row stood for all steps since the row before: for a preview, which has few of the rows."""
        steps = self._column("step")[: self.rows]
        gaps = np.nan_to_num(np.diff(steps, prepend=0.0), nan=1.0)
        for name in TOTALS:
            if name in self._values:
                each = np.nan_to_num(self._values[name][: self.rows].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
                self._column(f"Σ{name}")[: self.rows] = np.cumsum(each * gaps)

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._values:
            exact = name == "step" or name.startswith("Σ")  # counts that outgrow seven digits
            self._values[name] = np.full(self._room, np.nan, dtype=np.float64 if exact else np.float32)
        return self._values[name]

    def _make_room(self, more: int) -> None:
        if self.rows + more <= self._room:
            return
        self._room = max(256, self.rows + more, self._room + self._room // 2)
        for name, column in self._values.items():
            grown = np.full(self._room, np.nan, dtype=column.dtype)
            grown[: self.rows] = column[: self.rows]
            self._values[name] = grown

    def _squeeze(self, begin: int, end: int, several: int) -> int:
        """Of every so many rows the smallest and the largest value stay, in the order in which they came; where that ends."""
        blocks = (end - begin) // several
        cut = begin + blocks * several
        for name, column in self._values.items():
            rows = column[begin:cut].reshape(blocks, several)
            if name == "step" or name.startswith("Σ"):
                kept = rows[:, several // 2 - 1 :: several // 2]
            else:
                low, high = np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)
                rising = (rows == low[:, None]).argmax(axis=1) <= (rows == high[:, None]).argmax(axis=1)
                kept = np.stack([np.where(rising, low, high), np.where(rising, high, low)], axis=1)
            self._values[name] = np.concatenate([column[:begin], kept.ravel(), column[cut : self.rows]])
        self.rows += 2 * blocks - blocks * several
        self._room = self.rows
        return begin + 2 * blocks


class LogTable:
    """The steps and evaluations of one log."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.steps, self.evaluations = Columns(), Columns()
        self.bad_lines = 0
        self.offset = self.size = 0
        self.behind = False
        """Whether time was up before all was read."""
        self._file = 0
        self._trace = b""
        self._in_long_line = False

    @property
    def nbytes(self) -> int:
        return self.steps.nbytes + self.evaluations.nbytes

    @property
    def read(self) -> float:
        """Share of the log that has been read."""
        return self.offset / self.size if self.size else 1.0

    def read_on(self, file: BinaryIO, seconds: float = 20.0) -> None:
        """Takes in what was written since the last time; stops early, to be called again, when time is up."""
        status = os.fstat(file.fileno())
        if not self._is_continued(file, status):
            self._begin()
        self._file, self.size = status.st_ino, status.st_size
        until = time.monotonic() + seconds
        self.behind = True
        while self.behind and time.monotonic() < until:
            self.behind = self._take(file)
        file.seek(max(0, self.offset - TRACE))
        self._trace = file.read(min(TRACE, self.offset))

    def left(self, file: BinaryIO) -> int:
        """Bytes that `read_on` would have to read."""
        status = os.fstat(file.fileno())
        return status.st_size - (self.offset if self._is_continued(file, status) else 0)

    @classmethod
    def preview(cls, file: BinaryIO) -> LogTable:
        """Some lines from all over a log, at once: its shape, while all of it is still being read."""
        table = cls()
        table.behind, table.size = True, os.fstat(file.fileno()).st_size
        places = np.linspace(0, max(0, table.size - WINDOW), SAMPLES).astype(np.int64).tolist()
        windows = [os.pread(file.fileno(), WINDOW, place) for place in dict.fromkeys(places)]
        lines = [window.split(b"\n", 2) for window in windows]
        table._keep(b"\n".join(dict.fromkeys(line[1] for line in lines if len(line) == 3)))
        table.bad_lines = 0
        table.steps.stretch()
        return table

    def _is_continued(self, file: BinaryIO, status: os.stat_result) -> bool:
        if status.st_ino != self._file or status.st_size < self.offset:
            return False
        file.seek(self.offset - len(self._trace))
        return file.read(len(self._trace)) == self._trace

    def _take(self, file: BinaryIO) -> bool:
        """One block; False when there is nothing more to read for now."""
        file.seek(self.offset)
        block = file.read(BLOCK)
        end = block.rfind(b"\n") + 1
        if not end:
            if len(block) == BLOCK:  # a line that never ends: passed over, and counted once
                self.bad_lines += not self._in_long_line
                self._in_long_line = True
                self.offset += BLOCK
                return True
            return False
        begin = block.find(b"\n") + 1 if self._in_long_line else 0
        self._in_long_line = False
        self._keep(block[begin:end])
        self.offset += end
        return True

    def _keep(self, block: bytes) -> None:
        lines = [line for line in block.split(b"\n") if line and not line.isspace()]
        records = _records(lines)
        self.bad_lines += len(lines) - len(records)
        self.steps.add([record for record in records if record.get("kind") == "step"])
        self.evaluations.add([record for record in records if record.get("kind") == "evaluation"])


def _records(lines: list[bytes]) -> list[JsonDict]:
    """The lines that are JSON objects. All at once, which is faster, or one by one where something is wrong with them."""
    try:
        found = json.loads("[" + b",".join(lines).decode("utf-8") + "]")
        if len(found) == len(lines) and all(type(record) is dict for record in found):
            return found
    except (ValueError, RecursionError):
        pass
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> JsonDict | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _by_name(records: list[JsonDict]) -> dict[str, Floats]:
    names = [name for name in set().union(*records) - {"kind"} if len(name) <= LONGEST_NAME]
    if len(names) > MOST_COLUMNS:  # a log of ours has dozens; those that came first stay
        short = set(names)
        names = list(dict.fromkeys(name for record in records for name in record if name in short))[:MOST_COLUMNS]
    if not names:
        return {}
    try:
        rows: Iterable[object] = map(itemgetter(*names), records)
        table = np.array(list(rows), dtype=np.float64).reshape(len(records), len(names))
        return {name: table[:, position] for position, name in enumerate(names)}
    except (KeyError, TypeError, ValueError, OverflowError):  # not all have the same, or something is no number
        found = {name: [_number(record.get(name)) for record in records] for name in names}
        return {name: np.array(values) for name, values in found.items() if not all(np.isnan(values))}


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else np.nan
    except OverflowError:
        return np.nan
