"""A run works from any folder: small data are copied, larger ones and models are known by their absolute paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import upslope as up
from upslope.board.plan_file import parse_plan
from upslope.board.plan_view import settings_view
from upslope.cli import main
from upslope.errors import UserError
from upslope.report.check_run import check_run
from upslope.report.compare.cells import Question, check, check_agrees
from upslope.runtime import data_files
from upslope.runtime.data_files import DataFiles
from upslope.serving.server import load_served

QUICK = {
    "warm_start": 0.0, "steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": 3, "eval_problems": 4,
    "checkpoint_every": 1,
}  # fmt: skip
TINY = "tiny:layers=1,width=16"


def write(path: Path, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": i + 1}) + "\n" for i in range(first, first + 20)))
    return path


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A run on files and a model that were given by relative paths."""
    from upslope.policies import load_language_model

    home = tmp_path / "home"
    write(home / "problems.jsonl")
    write(home / "held" / "problems.jsonl", 100)
    load_language_model(TINY, 0).save(home / "base")
    monkeypatch.chdir(home)
    up.train("grpo", "problems.jsonl", model="base", reward="exact", test_data="held/problems.jsonl", out="run", lora=2, **QUICK)
    return home / "run"


def test_a_run_works_from_anywhere_and_wherever_it_is_moved(started, tmp_path, monkeypatch, capsys):
    table = up.load(started).table
    assert (table["task"], table["test_data"]) == ("{run}/data/problems.jsonl", "{run}/data/test-problems.jsonl")
    assert table["model"] == str(started.parent / "base")
    assert table["sources"] == {
        "{run}/data/problems.jsonl": str(started.parent / "problems.jsonl"),
        "{run}/data/test-problems.jsonl": str(started.parent / "held" / "problems.jsonl"),
    }
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    started.rename(moved)
    write(started.parent / "problems.jsonl", 50)  # the original changes: the run has its own
    shutil.rmtree(started.parent / "held")
    monkeypatch.chdir("/")
    said = {}
    for words in (["eval", str(moved), "--k", "1", "--json"], ["try", str(moved), "--problems", "2"], ["check", str(moved)]):
        assert main(words) == 0, capsys.readouterr().err
        said[words[0]] = capsys.readouterr().out
    assert json.loads(said["eval"])["task"] == "problems.jsonl"
    assert "data                         problems.jsonl" in said["check"] and "on problems.jsonl, model" in said["check"]
    assert all(each.whole for each in check_run(moved))
    assert load_served(str(moved), "cpu", 1).tokenizer is not None
    (moved / "summary.json").unlink()
    shutil.rmtree(moved / "checkpoints" / "step-000002")
    again = up.resume(moved)
    assert again.summary["task"] == "problems.jsonl" and len(again.metrics) == 2
    assert again.components.task.sample(1, "test", np.random.default_rng(0))[0].prompt.startswith("1")


def test_the_board_shows_the_file_and_the_command_that_reads_it_again(started):
    plan = parse_plan((started / "run.toml").read_text())
    view = settings_view(plan)
    assert (view["task"], view["test_data"]) == ("problems.jsonl", "test-problems.jsonl")
    home = started.parent
    assert f"--task {home / 'problems.jsonl'} " in view["command"]
    assert f"--test-data {home / 'held' / 'problems.jsonl'} " in view["command"]


def test_a_copy_that_was_changed_or_is_gone_is_noticed(started):
    copy = started / "data" / "problems.jsonl"
    copy.write_text(copy.read_text() + '{"prompt": "9+9=", "answer": 18}\n')
    with pytest.raises(UserError, match=r"data/problems\.jsonl has changed since"):
        _ = up.load(started).policy
    assert [each.said for each in check_run(started) if not each.whole] == ["problems.jsonl has changed since the run began"]
    copy.unlink()
    with pytest.raises(UserError, match=r"no file .*data/problems.jsonl"):
        _ = up.load(started).policy
    assert "no file 'problems.jsonl'" in next(each.said for each in check_run(started) if not each.whole)


def test_large_data_stay_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "LARGEST_COPY", 100)
    file = write(tmp_path / "large.jsonl")
    monkeypatch.chdir(tmp_path)
    run = up.train("grpo", "large.jsonl", model=TINY, reward="exact", out="run", **QUICK)
    assert run.table["task"] == str(file) and list(run.table["data"]) == [str(file)] and not (run.path / "data").exists()
    monkeypatch.chdir("/")
    assert up.load(tmp_path / "run").policy is not None
    write(file, 50)
    with pytest.raises(UserError, match=r"large.jsonl has changed since"):
        _ = up.load(tmp_path / "run").policy


def test_a_folder_of_datasets_is_copied_whole(tmp_path, monkeypatch):
    import datasets

    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(20)]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "sums")
    monkeypatch.chdir(tmp_path)
    run = up.train("grpo", "./sums", model=TINY, reward="exact", out="run", **QUICK)
    shutil.rmtree(tmp_path / "sums")
    assert run.table["task"] == "{run}/data/sums" and "{run}/data/sums/train/state.json" in run.table["data"]
    monkeypatch.chdir("/")
    again = up.load(tmp_path / "run")
    assert again.policy is not None and len(again.components.task.rows) == 20
    assert all(each.whole for each in check_run(tmp_path / "run"))


def test_data_that_change_while_a_run_begins_are_refused(tmp_path):
    file = write(tmp_path / "problems.jsonl")
    found = DataFiles.at(str(file))
    write(file, 50)
    with pytest.raises(UserError, match="changed while the run began"):
        found.keep(tmp_path / "run")


def test_a_run_from_before_data_were_copied_reads_as_it_did(tmp_path, monkeypatch):
    """Its file is found from where it was started, and names of columns that are recognised today change nothing."""
    import tomli_w

    from upslope.runtime.toml_files import parse_toml

    monkeypatch.chdir(tmp_path)
    Path("old.jsonl").write_text("".join(json.dumps({"prompt": f"{i}=", "label": i}) + "\n" for i in range(20)))
    Path("own.py").write_text("def score(prompts, responses, answers):\n    return [float(len(answer)) for answer in answers]\n")
    run = up.train("grpo", "old.jsonl", model=TINY, reward="own.py:score", out="run", columns="answer=", **QUICK)
    table = parse_toml((run.path / "run.toml").read_text())
    table |= {"task": "old.jsonl", "data": {"old.jsonl": table["data"]["{run}/data/old.jsonl"]}}
    del table["sources"], table["settings"]["columns"], table["settings"]["system"], table["settings"]["template"]
    (run.path / "run.toml").write_text(tomli_w.dumps(table))
    shutil.rmtree(run.path / "data")
    old = up.load("run")
    assert old.policy is not None
    assert {problem.answer for problem in old.components.task.division.problems["train"]} == {""}
    monkeypatch.chdir("/")
    with pytest.raises(UserError, match="Go where the run was started"):
        _ = up.load(tmp_path / "run").policy


@pytest.mark.parametrize("largest", [data_files.LARGEST_COPY, 100])
def test_an_earlier_run_on_other_data_is_not_taken_for_a_cell(tmp_path, monkeypatch, largest):
    monkeypatch.setattr(data_files, "LARGEST_COPY", largest)
    file = write(tmp_path / "problems.jsonl")
    checked = check(Question(("grpo",), (str(file),), seeds=1, model=TINY, settings=QUICK, reward=("exact",)), up.method)
    run = up.train("grpo", str(file), model=TINY, reward="exact", out=tmp_path / "run", **checked.cells[0].settings)
    check_agrees(checked.cells[0], run.path, checked)
    write(file, 50)
    with pytest.raises(UserError, match=r"was trained with data\..*problems.jsonl '\w+', and now it is"):
        check_agrees(checked.cells[0], run.path, checked)


def test_runs_on_other_data_of_the_same_name_are_not_compared(tmp_path, monkeypatch, capsys):
    runs = []
    for name, first in (("a", 0), ("b", 50), ("c", 0)):
        write(tmp_path / name / "problems.jsonl", first)
        monkeypatch.chdir(tmp_path / name)
        method = "rloo" if name != "a" else "grpo"
        runs.append(up.train(method, "problems.jsonl", model=TINY, reward="exact", out=tmp_path / f"run-{name}", **QUICK).path)
    monkeypatch.chdir("/")
    other = up.compare([runs[0], runs[1]], out=tmp_path / "other")
    assert "they differ in task: data is problems.jsonl" in (tmp_path / "other" / "report.md").read_text()
    up.compare([runs[0], runs[2]], out=tmp_path / "same")
    assert "differ in" not in (tmp_path / "same" / "report.md").read_text()
    assert "on problems.jsonl" in (tmp_path / "same" / "report.md").read_text() and other.path == tmp_path / "other"
