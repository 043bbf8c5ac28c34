"""Curves for the page: as many points as it can draw, with the extremes of what was left out; and bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from upslope.board.log_table import Columns, Floats, LogTable
from upslope.plain_data import JsonDict
from upslope.runtime.statistics import iqm_band

AXES = ("step", "samples", "tokens", "seconds")
DRAWS, WORK = 1000, 20_000_000
"""Draws of the bootstrap; fewer, but at least 200, where there are so many seeds and points that it would take seconds."""
CHUNK = 64
"""Points of a band worked out at a time."""


class Curve(NamedTuple):
    """Values over an axis; with ``low`` and ``high`` where a point stands for several."""

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


EMPTY = Curve(np.empty(0), np.empty(0))


def curve(columns: Columns, key: str, axis: str, points: int, begin: float | None = None, end: float | None = None) -> Curve:
    """A column over an axis, between ``begin`` and ``end``, in at most that many points."""
    x, y = columns.axis(axis), columns.column(key)
    if x is None or y is None:
        return EMPTY
    known = np.isfinite(x)
    inside = known & (x >= (-np.inf if begin is None else begin)) & (x <= (np.inf if end is None else end))
    return thinned(x[inside], y[inside], points)


def thinned(x: Floats, y: Floats, points: int) -> Curve:
    """Stretches of equally many rows: the mean, the smallest and the largest value of each, at its middle."""
    if len(x) <= points:
        return Curve(x, y)
    cuts = np.linspace(0, len(x), points + 1).astype(np.int64)
    starts, middles = cuts[:-1], (cuts[:-1] + cuts[1:] - 1) // 2
    finite = np.isfinite(y)
    counted = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(finite, y, 0.0), starts) / counted
    some = counted > 0
    low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
    return Curve(x[middles], mean, np.where(some, low, np.nan), np.where(some, high, np.nan))


def evaluations(table: LogTable, key: str, axis: str) -> dict[str, list[Any]]:
    """What was measured on held-out problems, with its interval, over any axis: at the total the run had reached by then."""
    step, y = table.evaluations.column("step"), table.evaluations.column(key)
    if step is None or y is None:
        return {"x": [], "y": [], "low": [], "high": []}
    x = step if axis == "step" else _totals_at(table.steps, axis, step)
    bounds = {}
    for name in ("low", "high"):
        column = table.evaluations.column(name) if key == "score" else None
        bounds[name] = np.full(len(y), np.nan) if column is None else column
    known = np.isfinite(x)
    return {"x": plain(x[known]), "y": plain(y[known]), **{name: plain(bound[known]) for name, bound in bounds.items()}}


def _totals_at(steps: Columns, axis: str, at: Floats) -> Floats:
    step, total = steps.column("step"), steps.axis(axis)
    if step is None or total is None:
        return np.where(at == 0, 0.0, np.nan)
    return np.concatenate([[0.0], total])[np.searchsorted(step, at, side="right")]


def _steps_at(steps: Columns, axis: str, at: Floats) -> Floats:
    step, total = steps.column("step"), steps.axis(axis)
    if step is None or total is None or not len(step):
        return np.full(len(at), np.nan)
    return step[np.clip(np.searchsorted(total, at), 0, len(step) - 1)]


def curve_record(run: str, table: LogTable, key: str, axis: str, points: int, window: tuple[float | None, float | None]) -> dict:
    """A run's curve as the page gets it."""
    found = curve(table.steps, key, axis, points, *window)
    record: JsonDict = {"run": run, "x": plain(found.x), "y": plain(found.y)}
    if axis != "step":  # where a point leads to
        record["step"] = plain(_steps_at(table.steps, axis, found.x))
    if found.low is not None and found.high is not None:
        record |= {"low": plain(found.low), "high": plain(found.high)}
    if key == "score" or key not in table.steps.names:
        record["evaluation"] = evaluations(table, key, axis)
    if table.behind:
        record["read"] = table.read
    return record


def plain(values: Floats) -> list[float | int | None]:
    """Numbers as JSON can say them: what is no number is null, and no digits that float32 does not have."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.7g}")


# -- bands over seeds ------------------------------------------------------------------------------------------------------


def band(curves: Sequence[Curve], points: int) -> dict[str, list[Any]]:
    """The mean of several seeds at each point (from four on of their middle half) with its 95% interval; one seed has none."""
    usable = [Curve(one.x[np.isfinite(one.y)], one.y[np.isfinite(one.y)]) for one in curves]
    usable = [one for one in usable if len(one.x)]
    if not usable:
        return {"x": [], "mean": [], "low": [], "high": []}
    x = np.unique(np.concatenate([one.x for one in usable]))
    if len(x) > points:
        x = x[np.linspace(0, len(x) - 1, points).astype(np.int64)]
    values = np.stack([np.interp(x, one.x, one.y, left=np.nan, right=np.nan) for one in usable])
    mean, low, high = (np.full(len(x), np.nan) for _ in range(3))
    here = np.isfinite(values)
    for present in np.unique(here, axis=1).T:
        at = np.flatnonzero((here == present[:, None]).all(axis=0))
        if present.any():
            mean[at], low[at], high[at] = _over_seeds(values[np.ix_(present, at)])
    return {"x": plain(x), "mean": plain(mean), "low": plain(low), "high": plain(high)}


def _over_seeds(values: Floats) -> tuple[Floats, Floats, Floats]:
    """The middle of the seeds and its interval, ``[P]`` each, of ``[S, P]``; some points at a time, which bounds the memory."""
    if len(values) < 2:
        return values[0], np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    draws = max(200, min(DRAWS, WORK // values.size))
    pieces = [iqm_band(values[:, begin : begin + CHUNK], draws=draws) for begin in range(0, values.shape[1], CHUNK)]
    middle, low, high = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return middle, low, high
