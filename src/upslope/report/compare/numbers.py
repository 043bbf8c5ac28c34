"""Every number of a comparison as one CSV in long form: a row per point, with its interval.

The page, the figures and the tables show these numbers rounded; here they stand in full, for whoever draws them anew.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from upslope.report.compare.measuring import AXES, Comparison, Estimate, Line

COLUMNS = ("figure", "task", "measure", "method", "axis", "x", "value", "low", "high")


@dataclass(frozen=True)
class Row:
    """A line of the file."""

    figure: str
    """The name of the picture that shows it, or of the table."""
    task: str
    measure: str
    method: str
    axis: str
    """What ``x`` is: empty where there is none."""
    x: float | None
    value: float | None
    low: float | None = None
    high: float | None = None


def numbers(found: Comparison) -> str:
    """The comparison as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(found):
        writer.writerow([_cell(value) for value in astuple(row)])
    return file.getvalue()


def rows(found: Comparison) -> list[Row]:
    """All rows, figure by figure."""
    return [*_scores(found), *_curves(found), *_pairs(found), *_spread(found), *_diagnostics(found), *_tables(found)]


def figure_name(kind: str, found: Comparison, task: str = "", end: str = "") -> str:
    """A file name for a picture. With one task its name is left out."""
    where = re.sub(r"[^\w.+-]+", "-", task)[:60].strip("-.")
    if [re.sub(r"[^\w.+-]+", "-", each)[:60].strip("-.") for each in found.tasks].count(where) > 1:
        where = f"{where}-{found.tasks.index(task)}"
    return "-".join(part for part in (kind, where if len(found.tasks) > 1 else "", end) if part)


def _scores(found: Comparison) -> Iterator[Row]:
    if len(found.tasks) > 1 and not found.obstacles:
        measure = "normalised score" if found.normalised else "score"
        for each in found.standings:
            yield _estimated("score-all", "", measure, each.label, each.score)
    for task in found.tasks:
        name, measure = figure_name("score", found, task), found.score_name[task]
        for each in found.standings:
            if task in each.tasks:
                some = each.tasks[task]
                yield _estimated(name, task, measure, each.label, some.score)
                for seed, value in zip(some.seeds, some.after, strict=True):
                    yield Row(name, task, measure, each.label, "seed", seed, value)


def _curves(found: Comparison) -> Iterator[Row]:
    for task in found.tasks:
        for axis in AXES:
            name = figure_name("curve", found, task, axis)
            yield from _lines(name, task, found.score_name[task], axis, found.curves[task][axis])


def _pairs(found: Comparison) -> Iterator[Row]:
    for pair in found.pairs:
        who = f"{pair.ours} over {pair.theirs}"
        yield Row("improvement", "", "P", who, "", None, pair.chance, pair.low, pair.high)
        yield Row("pairs", "", "difference", who, "", None, pair.difference, pair.difference_low, pair.difference_high)
        yield Row("pairs", "", "p", who, "", None, pair.p)
        yield Row("pairs", "", "p (Holm)", who, "", None, pair.adjusted)


def _spread(found: Comparison) -> Iterator[Row]:
    yield from _lines("profile", "", "share of runs", "score", found.profiles)
    for task, lines in found.passes.items():
        yield from _lines(figure_name("pass-at-k", found, task), task, "pass@k", "k", lines)


def _diagnostics(found: Comparison) -> Iterator[Row]:
    for task in found.tasks:
        name = figure_name("on-the-way", found, task)
        for each in found.diagnostics[task]:
            for label, curve in each.curves.items():
                line = Line(label, curve["step"], curve["middle"], curve["low"], curve["high"])
                yield from _lines(name, task, each.key, "steps", [line])
            for label, value in each.values.items():
                yield Row(name, task, f"{each.key} ({each.when})", label, "", None, value)


def _tables(found: Comparison) -> Iterator[Row]:
    for each in found.learned:
        yield Row("learned", each.task, "start", each.label, "", None, each.before)
        yield Row("learned", each.task, "end", each.label, "", None, each.after)
        yield Row("learned", each.task, "change", each.label, "", None, each.change, each.low, each.high)
    for task, efficiency in found.efficiency.items():
        for one in efficiency.methods:
            yield Row("steps-to", task, "steps", one.label, "score", efficiency.threshold, one.steps, one.low, one.high)


def _estimated(figure: str, task: str, measure: str, label: str, found: Estimate) -> Row:
    return Row(figure, task, measure, label, "", None, found.value, found.low, found.high)


def _lines(figure: str, task: str, measure: str, axis: str, lines: Sequence[Line]) -> Iterator[Row]:
    for line in lines:
        for x, middle, low, high in zip(line.x, line.middle, line.low, line.high, strict=True):
            yield Row(figure, task, measure, line.label, axis, x, middle, low, high)


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return repr(value)
    return str(value).encode("utf-8", "replace").decode("utf-8")
