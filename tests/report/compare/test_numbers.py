"""The CSV of a comparison: every number that is drawn, in full."""

from __future__ import annotations

import csv
import dataclasses
import io

from upslope.report.compare.measuring import AXES, Comparison
from upslope.report.compare.numbers import COLUMNS, figure_name, numbers
from upslope.report.compare.page import page


def read(text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    assert tuple(reader.fieldnames or ()) == COLUMNS
    return rows


def test_every_point_of_every_picture_is_there_in_full(found: Comparison) -> None:
    rows = read(numbers(found))

    def points(figure: str, method: str, axis: str) -> list[tuple[float, ...]]:
        some = [row for row in rows if (row["figure"], row["method"], row["axis"]) == (figure, method, axis)]
        return [tuple(float(row[key]) for key in ("x", "value", "low", "high")) for row in some]

    for axis in AXES:
        for line in found.curves["reverse"][axis]:
            assert points(f"curve-{axis}", line.label, axis) == list(zip(line.x, line.middle, line.low, line.high, strict=True))
    for figure, axis, lines in (("profile", "score", found.profiles), ("pass-at-k", "k", found.passes["reverse"])):
        for line in lines:
            assert points(figure, line.label, axis) == list(zip(line.x, line.middle, line.low, line.high, strict=True))
    for each in found.diagnostics["reverse"]:
        for label, curve in each.curves.items():
            drawn = [row for row in rows if (row["measure"], row["method"], row["axis"]) == (each.key, label, "steps")]
            assert [float(row["value"]) for row in drawn] == curve["middle"]


def test_the_numbers_are_those_that_the_page_shows(found: Comparison) -> None:
    rows, html = read(numbers(found)), page(found)
    scores = [row for row in rows if row["figure"] == "score" and not row["axis"]]
    assert [row["method"] for row in scores] == found.labels
    for row in scores:
        assert f"{float(row['value']):.3f} [{float(row['low']):.3f}, {float(row['high']):.3f}]" in html
    chances = [row for row in rows if row["figure"] == "improvement"]
    assert len(chances) == 3
    for row in chances:
        assert f"{float(row['value']):.2f} [{float(row['low']):.2f}, {float(row['high']):.2f}]" in html
    runs = [row for row in rows if row["figure"] == "score" and row["axis"] == "seed"]
    assert [float(row["value"]) for row in runs if row["method"] == "dhpo"] == found.standings[0].tasks["reverse"].after
    never = [row for row in rows if row["figure"] == "steps-to" and row["method"] == "grpo"]
    assert [(row["value"], row["low"], row["high"]) for row in never] == [("", "", "")]  # half of them never got there


def test_tasks_with_like_names_have_pictures_of_their_own(found: Comparison) -> None:
    two = dataclasses.replace(found, tasks=["my_task.py:A B", "my_task.py:A/B"])
    names = [figure_name("curve", two, task, "steps") for task in two.tasks]
    assert names == ["curve-my_task.py-A-B-0-steps", "curve-my_task.py-A-B-1-steps"]
    assert figure_name("score", found, "reverse") == "score"
