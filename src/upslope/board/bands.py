"""Runs that differ in nothing but the seed, drawn as one: the mean of their curves and how sure it is."""

from __future__ import annotations

import numpy as np

from upslope.board.curves import Curve, band, curve, evaluations
from upslope.board.index import Gone
from upslope.board.log_table import Floats
from upslope.board.logs import Budget, Logs
from upslope.board.plan_view import experiment
from upslope.plain_data import JsonDict

Window = tuple[float | None, float | None]


def bands(
    plans: dict[str, JsonDict], logs: Logs, key: str, axis: str, points: int, window: Window = (None, None)
) -> list[JsonDict]:
    """A band per experiment, in the order in which the runs were given; of a ``window`` as finely as it was logged."""
    groups: dict[str, tuple[str, JsonDict, list[str]]] = {}
    for run, plan in plans.items():
        name, apart = experiment(plan)
        groups.setdefault(repr((name, sorted(apart.items(), key=str))), (name, apart, []))[2].append(run)
    budget = Budget()
    labels = _labels([(name, apart) for name, apart, _ in groups.values()])
    found = []
    for label, (_, _, runs) in zip(labels, groups.values(), strict=True):
        curves = [each for run in runs if (each := _curve_of(run, logs, budget, key, axis, points, window)) is not None]
        found.append({"label": label, "runs": runs, **band(curves, points)})
    return found


def _curve_of(run: str, logs: Logs, budget: Budget, key: str, axis: str, points: int, window: Window) -> Curve | None:
    try:
        with logs.table(run, budget) as table:
            if key != "score" and key in table.steps.names:
                return curve(table.steps, key, axis, points, *_wider(table.steps.axis(axis), window))
            measured = evaluations(table, key, axis)
            return Curve(np.array(measured["x"], dtype=np.float64), np.array(measured["y"], dtype=np.float64))
    except Gone:
        return None


def _wider(x: Floats | None, window: Window) -> Window:
    """A window with the point before it and the one behind it, so that lines reach its edges."""
    if x is None or not len(x) or window == (None, None):
        return window
    known = x[np.isfinite(x)]
    begin, end = window
    before = known[known < begin] if begin is not None else known[:0]
    behind = known[known > end] if end is not None else known[:0]
    return (float(before[-1]) if len(before) else begin, float(behind[0]) if len(behind) else end)


def _labels(experiments: list[tuple[str, JsonDict]]) -> list[str]:
    """The method's name, and where several experiments share it what sets them apart."""
    labels = []
    for name, apart in experiments:
        others = [other for its_name, other in experiments if its_name == name and other != apart]
        telling = [key for key, value in apart.items() if any(other.get(key) != value for other in others)]
        labels.append(" ".join([name, *(f"{key}={apart[key]}" for key in telling)]))
    return labels
