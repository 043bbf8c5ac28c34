"""Problems given in Python: the same run as from a file, kept with the run, and refused in words where they are none."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import upslope as up
from upslope.errors import Remark, TaskError, UserError
from upslope.tasks import python_data
from upslope.tasks.python_data import as_python_table

QUICK = {
    "model": "tiny:layers=1,width=16", "warm_start": 0.0, "steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": 3,
    "eval_problems": 4, "reward": "exact",
}  # fmt: skip
ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": i % 3} for i in range(20)]


def frame(rows):
    import pandas

    return pandas.DataFrame(rows)


def dataset(rows):
    import datasets

    return datasets.Dataset.from_list(rows)


def streamed(rows):
    return dataset(rows).to_iterable_dataset()


MADE = {"list": list, "tuple": tuple, "generator": iter, "pandas": frame, "datasets": dataset, "streamed": streamed}


@pytest.mark.parametrize("kind", MADE)
def test_every_kind_of_table_has_the_same_rows(kind):
    assert [row.values for row in as_python_table(MADE[kind](ROWS), "problems").rows] == ROWS


def test_a_run_from_a_list_is_the_run_from_a_file_and_opens_wherever_it_is_moved(tmp_path):
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    of_file = up.train("grpo", str(tmp_path / "problems.jsonl"), out=tmp_path / "file", **QUICK)
    of_list = up.train("grpo", (row for row in ROWS), out=tmp_path / "list", **QUICK)
    same = ("reward", "loss", "grad_norm")
    assert [[step[key] for key in same] for step in of_file.metrics] == [[step[key] for key in same] for step in of_list.metrics]
    assert of_list.table["task"] == "{run}/data/problems.jsonl" and of_list.table["unkept"] == []
    assert (tmp_path / "list" / "data" / "problems.jsonl").read_bytes() == (tmp_path / "problems.jsonl").read_bytes()
    (tmp_path / "list").rename(tmp_path / "moved")
    again = up.load(tmp_path / "moved")
    assert again.policy is not None
    assert again.components.task.division.problems == of_list.components.task.division.problems
    assert list(again.table["data"]) == ["{run}/data/problems.jsonl"]


def test_test_data_in_python_is_kept_too(tmp_path):
    run = up.train("grpo", ROWS, test_data=frame([{"prompt": "8+8=", "answer": 16}]), out=tmp_path / "run", **QUICK)
    assert run.table["test_data"] == "{run}/data/test.jsonl"
    assert [problem.answer for problem in run.components.task.division.problems["test"]] == ["16"]
    again = up.load(run.path)
    assert again.policy is not None
    assert [problem.prompt for problem in again.components.task.division.problems["test"]] == ["8+8="]


def test_a_file_and_a_table_of_the_same_name_are_both_kept(tmp_path):
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run = up.train("grpo", tmp_path / "test.jsonl", test_data=[{"prompt": "8+8=", "answer": 16}], out=tmp_path / "run", **QUICK)
    assert (run.table["task"], run.table["test_data"]) == ("{run}/data/task-test.jsonl", "{run}/data/test.jsonl")
    again = up.load(run.path)
    assert again.policy is not None
    assert again.components.task.division.problems == run.components.task.division.problems


def test_a_comparison_takes_names_and_files_only(tmp_path):
    with pytest.raises(UserError, match=r"it must be a name \('upslope tasks'\) or a file"):
        up.compare(["grpo", "rloo"], ROWS, out=tmp_path / "comparison")
    with pytest.raises(UserError, match=r"test_data is .* it must be a file"):
        up.compare(["grpo", "rloo"], "sort", test_data=ROWS, out=tmp_path / "comparison")


def test_splits_of_a_dataset_dict_and_columns(tmp_path):
    import datasets

    rows = [{"question": row["prompt"], "solution": row["answer"]} for row in ROWS]
    data = datasets.DatasetDict({"train": dataset(rows[:15]), "test": dataset(rows[15:])})
    run = up.train("grpo", data, out=tmp_path / "run", **QUICK)
    division = run.components.task.division
    assert [problem.answer for problem in division.problems["test"]] == [row["answer"] for row in ROWS[15:]]
    again = up.load(run.path)
    assert again.policy is not None and again.components.task.division.problems == division.problems
    with pytest.raises(TaskError, match=r"the dataset is in splits, and --columns split= would be others"):
        up.train("grpo", data, columns="split=", **QUICK)
    with pytest.raises(TaskError, match=r"splits a, b, and what 'a' is for cannot be told. Give one of them: task=data\['a'\]"):
        as_python_table(datasets.DatasetDict({"a": data["train"], "b": data["test"]}), "problems")


def test_values_of_numpy_and_pandas_become_plain():
    import pandas

    rows = [{"prompt": np.str_("a"), "answer": np.int64(3), "when": pandas.Timestamp("2026-01-02"), "gap": np.nan, "no": pandas.NaT,
             "na": pandas.NA, "many": np.arange(3), "flag": np.bool_(True), "share": np.float32(0.5)}]  # fmt: skip
    (row,) = as_python_table(rows, "problems").rows
    assert json.loads(json.dumps(row.values)) == {
        "prompt": "a", "answer": 3, "when": "2026-01-02T00:00:00", "gap": None, "no": None, "na": None, "many": [0, 1, 2],
        "flag": True, "share": 0.5,
    }  # fmt: skip


def stumbling():
    yield ROWS[0]
    raise OSError("the connection is gone")


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (3, "task is 3 (int); it must be a name"),
        (None, "task is None (NoneType); it must be a name"),
        ({"prompt": "a"}, "is a dict, not a table"),
        ({}, "task={} is a dict, not a table"),
        ({"prompt": ["a", "b"], "answer": ["1", "2"]}, "is a dict, not a table"),
        ([], "task=[] is empty"),
        (lambda: None, "lambda gave None, which is no gymnasium.Env"),
        (object(), "is no data"),
        (["2+2="], "row 1: '2+2=' is no dict"),
        ([*ROWS, ("a", "b")], "row 21: ('a', 'b') is no dict"),
        ([{"prompt": "a", "image": object()}], "row 1: 'image' is a object, which is no text"),
        (stumbling(), "raised OSError: the connection is gone after 1 rows"),
        ([{"text": "a"}], 'problems, row 1: no "prompt". Its columns: text.'),
        ([{"prompt": "a", "answer": 1}, {"prompt": "", "answer": 1}], 'problems, row 2: "prompt" must be text and not empty'),
    ],
)
def test_what_is_no_task_is_refused_in_words(task, told):
    with pytest.raises(UserError) as caught:
        up.train("grpo", task, **QUICK)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_endless_generator_ends(monkeypatch):
    monkeypatch.setattr(python_data, "MOST_ROWS", 50)
    with pytest.raises(TaskError, match="more than 50 rows, or never ends"):
        as_python_table(({"prompt": str(i)} for i in itertools.count()), "problems")
    assert len(as_python_table(iter(ROWS * 2), "problems").rows) == 40
    assert len(as_python_table(ROWS * 5, "problems").rows) == 100


def test_a_task_object_is_taken_as_it_is_and_said_to_be_unkept(tmp_path):
    from upslope.tasks import load_task

    task = load_task("reverse:length=2")
    with pytest.warns(Remark, match="the task cannot be kept with the run"):
        run = up.train("grpo", task, out=tmp_path / "run", **QUICK)
    assert run.table["unkept"] == ["task"]
    assert up.load(run.path, task=task).policy is not None
