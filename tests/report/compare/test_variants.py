"""Grids: over settings of a run, knobs of parts and whole parts, from the command line and from Python."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from upslope.api import method
from upslope.cli import main
from upslope.cli.parsers import parsers
from upslope.errors import Remark, UserError
from upslope.report.compare.cells import Cell, Question, check, write_question
from upslope.report.compare.command import _grid
from upslope.report.compare.timing import Cost
from upslope.runtime.settings import Settings
from upslope.runtime.settings_flags import given_settings
from upslope.types import SLOTS


def first_cells(**asked: object) -> list[Cell]:
    return check(Question(**{"methods": ("grpo",), "seeds": 1, **asked}), method).cells  # type: ignore[arg-type]


def test_no_setting_has_the_name_of_a_slot() -> None:
    assert not {f.name for f in dataclasses.fields(Settings)} & set(SLOTS)
    assert not {f.name.replace("_", "-") for f in dataclasses.fields(Settings)} & set(SLOTS)


def test_settings_knobs_and_parts_are_swept_together() -> None:
    grid = _grid(["lr=1e-4,3e-4", "samples-per-task=4,8", "aggregate=TokenMean,SequenceMeanTokenMean()", "surrogate.high=0.3"])
    cells = first_cells(grid=grid, settings={"steps": 7})
    assert len(cells) == 8 and len({cell.folder for cell in cells}) == 8
    assert cells[0].label == "grpo lr=0.0001 samples_per_task=4 aggregate=TokenMean surrogate.high=0.3"
    assert cells[0].knobs == {"aggregate": "TokenMean", "surrogate.high": "0.3"}
    assert cells[-1].settings == {"keep_checkpoints": 1, "eval_every": 1, "steps": 7, "lr": 3e-4, "samples_per_task": 8}
    flags = parsers()[0].parse_args(cells[-1].command(Path("x")))
    assert given_settings(flags) == {**cells[-1].settings, "seed": 0}
    python = first_cells(grid={"lr": [1e-4, 3e-4], "samples_per_task": (4, 8)}, settings={"steps": 7})
    assert [cell.label for cell in python] == [
        "grpo lr=0.0001 samples_per_task=4", "grpo lr=0.0001 samples_per_task=8",
        "grpo lr=0.0003 samples_per_task=4", "grpo lr=0.0003 samples_per_task=8",
    ]  # fmt: skip


def test_commas_in_brackets_belong_to_a_value() -> None:
    found = _grid(
        ["policy.hidden=(64,64),(256,256)", "surrogate=PessimisticClip(low=0.1, high=0.2),ClippedWeight", "a.b=[1,2],{3,4}"]
    )
    assert found["policy.hidden"] == ["(64,64)", "(256,256)"] and found["a.b"] == ["[1,2]", "{3,4}"]
    assert found["surrogate"] == ["PessimisticClip(low=0.1, high=0.2)", "ClippedWeight"]
    (cell, _) = Question(("ppo",), grid={"policy.hidden": [(64, 64), (256, 256)]}, seeds=1).cells()
    assert cell.label == "ppo policy.hidden=(64, 64)" and cell.knobs == {"policy.hidden": (64, 64)}


def test_a_grid_may_be_one_methods_own_and_may_vary_the_length() -> None:
    cells = first_cells(methods=("grpo", "gspo"), grid={"gspo:steps": ["20", "40"], "gspo:recompute": ["on", "off"]})
    assert [(cell.label, cell.settings["steps"], cell.settings["eval_every"]) for cell in cells] == [
        ("grpo", 200, 20), ("gspo steps=20 recompute=all", 20, 2), ("gspo steps=20 recompute=off", 20, 2),
        ("gspo steps=40 recompute=all", 40, 4), ("gspo steps=40 recompute=off", 40, 4),
    ]  # fmt: skip
    assert Cost({"reverse": 100.0}, work={"reverse": 200 * 32 * 8.0}).of(cells) == pytest.approx(100 + 2 * 10 + 2 * 20)
    assert Cost({"reverse": 100.0}).of(cells[:2]) == 200.0  # nothing known of what was timed: each as long


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"grid": {"lrr": [1e-4]}}, "neither a setting nor a slot of that name. Did you mean 'lr'"),
        ({"grid": {"lr": ["fast", "1e-4"]}}, "--lr: 'fast' is not a number"),
        ({"grid": {"lr": [-1.0, 1e-4]}}, "--lr is -1.0; it must be above 0"),
        ({"grid": {"lr": ["1e-4", "0.0001"]}}, "give each once"),
        ({"grid": {"lr": "1e-4,3e-4"}}, "give a list of values"),
        ({"grid": {"lr": 1e-4}}, "give a list of values"),
        ({"grid": {"lr": []}}, "give each once"),
        ({"grid": {"samples_per_task": [4], "samples-per-task": [8]}}, "twice"),
        ({"grid": {"schedule": ["linear", "cosin"]}}, "Did you mean 'cosine'"),
        ({"grid": {"recompute": ["perhaps"]}}, "neither a whole number nor auto or all or off"),
        ({"grid": {"seed": [1, 2]}}, "--seeds N"),
        ({"grid": {"lr": [1e-4]}, "settings": {"lr": 1e-3}}, "--lr 0.001 is for all runs, and --grid varies it too"),
        ({"grid": {"envs": [4, 8]}}, "--envs 4 goes with control"),
    ],
)
def test_what_a_grid_cannot_vary_is_refused_before_anything_runs(asked: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        first_cells(**asked)


def test_the_folder_of_a_comparison_says_what_each_cell_varied(tmp_path: Path) -> None:
    question = Question(("grpo",), seeds=1, grid={"lr": ["1e-4", "3e-4"]}, settings={"steps": 5})
    write_question(tmp_path, question, question.cells())
    table = tomllib.loads((tmp_path / "compare.toml").read_text())
    assert [cell["settings"] for cell in table["cells"]] == [{"lr": 1e-4}, {"lr": 3e-4}]
    assert table["shared"]["settings"] == {"steps": 5}


def test_a_grid_over_the_budget_is_told_before_the_first_run(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "grpo", "--seeds", "1", "--steps", "3", "--dry-run"]
    with pytest.warns(Remark, match="--grid samples_per_task changes what a run may spend: .* not ranked"):
        assert main([*words, "--grid", "samples-per-task=4,8"]) == 0
    head, *commands = capsys.readouterr().out.splitlines()
    assert head.startswith("2 runs (2 methods x 1 seed)") and [c.count("--samples-per-task") for c in commands] == [1, 1]
    assert main([*words, "--grid", "lr=1e-4,3e-4"]) == 0
    assert "note" not in capsys.readouterr().err
