"""Figures for a paper: a column wide, told apart without colour, the same bytes for the same numbers."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from fake_runs import fake_run

from upslope.cli import main
from upslope.errors import UserError
from upslope.report.compare import comparing
from upslope.report.compare.comparing import Options, compare_methods, compare_runs
from upslope.report.compare.figures import COLUMN, LOOK, _chart, line_look, write_figures
from upslope.report.compare.measuring import AXES, Comparison
from upslope.report.compare.numbers import rows
from upslope.runtime.files import write_text

HOSTILE = "$\\bad{$ _x <&\x00\ud800"


def cut(found: Comparison) -> Comparison:
    """With one axis and two metrics: each picture takes a moment."""
    curves = {axis: lines if axis == "tokens" else [] for axis, lines in found.curves["reverse"].items()}
    return dataclasses.replace(found, curves={"reverse": curves}, diagnostics={"reverse": found.diagnostics["reverse"][:2]})


@pytest.fixture(scope="module")
def drawn(found: Comparison, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in write_figures(cut(found), tmp_path_factory.mktemp("figures"))}


def test_every_picture_is_there_as_svg_and_pdf_under_the_name_that_the_csv_has(found: Comparison, drawn: dict[str, bytes]) -> None:
    names = {"score", "curve-tokens", "improvement", "profile", "pass-at-k", "on-the-way"}
    assert set(drawn) == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}
    assert names < {row.figure for row in rows(found)} and len(AXES) == 4
    for name, data in drawn.items():
        if name.endswith(".pdf"):
            assert data.startswith(b"%PDF") and data.rstrip().endswith(b"%%EOF")
            assert b"/Type3" not in data  # publishers refuse such fonts
        else:
            root = ElementTree.fromstring(data)
            width = 6.8 if name.startswith("on-the-way") else COLUMN
            assert root.tag.endswith("svg") and float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * width, abs=1)


def test_names_and_axes_stand_in_the_pictures(drawn: dict[str, bytes]) -> None:
    said = set(re.findall(r"<!-- (.*?) -->", drawn["curve-tokens.svg"].decode()))  # matplotlib writes what outlines spell
    assert {"grpo", "gspo", "dhpo", "accuracy", "tokens", "20k"} <= said
    assert "dhpo over grpo" in drawn["improvement.svg"].decode()


def test_methods_are_told_apart_in_grey() -> None:
    looks = [line_look(place) for place in range(45)]
    assert len({(look["linestyle"], look["marker"]) for look in looks}) == 45
    assert len({look["color"] for look in looks[:7]}) == 7


def test_hostile_names_are_drawn_as_they_are_and_the_bytes_repeat(found: Comparison, tmp_path: Path) -> None:
    first = dataclasses.replace(found.standings[0], label=HOSTILE)
    lines = [dataclasses.replace(found.curves["reverse"]["steps"][0], label=HOSTILE)]
    small = dataclasses.replace(
        found, title=HOSTILE, standings=[first], curves={"reverse": {axis: lines if axis == "steps" else [] for axis in AXES}},
        pairs=[], profiles=[], passes={}, diagnostics={"reverse": []},
    )  # fmt: skip
    written = [{path.name: path.read_bytes() for path in write_figures(small, tmp_path / str(turn))} for turn in range(2)]
    assert set(written[0]) == {"score.svg", "score.pdf", "curve-steps.svg", "curve-steps.pdf"} and written[0] == written[1]
    for name in ("score.svg", "curve-steps.svg"):
        ElementTree.fromstring(written[0][name])
        assert "\\bad{$ _x" in written[0][name].decode()


def test_many_names_make_a_picture_taller_and_not_its_frame_smaller(found: Comparison) -> None:
    line = found.curves["reverse"]["steps"][0]

    def frame(count: int) -> float:
        lines = [dataclasses.replace(line, label=f"grpo surrogate.high=0.{place}") for place in range(count)]
        figure = _chart(lines, {each.label: place for place, each in enumerate(lines)}, "steps", "accuracy")
        figure.draw_without_rendering()
        return float(figure.axes[0].get_position().height * figure.get_figheight())

    with matplotlib.rc_context(LOOK):
        assert frame(12) == pytest.approx(frame(2), abs=0.1) and frame(2) > 1.3


def test_without_matplotlib_figures_are_refused_before_anything_is_trained(monkeypatch, tmp_path: Path) -> None:
    spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "matplotlib" else spec(name, *more))
    told = r"pip install 'upslope\[figures\]'"
    with pytest.raises(UserError, match=told):
        compare_methods(None, None, Options(out=tmp_path / "out", figures=True))  # type: ignore[arg-type]
    runs = [fake_run(tmp_path / "runs", method, 0, 0.5) for method in ("grpo", "gspo")]
    with pytest.raises(UserError, match=told):
        compare_runs(runs, Options(out=tmp_path / "out", figures=True))
    assert not (tmp_path / "out").exists()
    assert (compare_runs(runs, Options(out=tmp_path / "out", quiet=True)).path / "table.tex").is_file()  # the rest needs nothing


def test_the_flag_draws_them_and_figures_of_an_earlier_answer_are_drawn_anew(monkeypatch, tmp_path: Path, capsys) -> None:
    asked: list[Path] = []

    def draw(found: Comparison, folder: Path) -> list[Path]:
        asked.append(folder)
        write_text(folder / "score.svg", "<svg/>")
        return []

    monkeypatch.setattr(comparing, "write_figures", draw)
    runs = [str(fake_run(tmp_path / "runs", method, 0, 0.5)) for method in ("grpo", "gspo")]
    command = ["compare", *runs, "--quiet", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and not asked
    assert main([*command, "--figures"]) == 0 and asked == [tmp_path / "out" / "figures"]
    assert main(command) == 0 and len(asked) == 2
    assert capsys.readouterr().out.split() == [str(tmp_path / "out")] * 3
