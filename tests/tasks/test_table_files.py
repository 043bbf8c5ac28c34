"""Tables in the files that people have: every kind gives the same problems, and what is wrong is named with its place."""

from __future__ import annotations

import csv
import gzip
import json
import sys

import numpy as np
import pytest

from upslope.errors import MissingExtra, TaskError
from upslope.rewards import load_reward
from upslope.tasks import domain_of, load_task, table_files
from upslope.tasks.table_files import read_table

ROWS = [{"prompt": f'ask "{i}",\nplease', "answer": f"{i}", "level": f"{i % 3}"} for i in range(30)]


def write_csv(path, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_parquet(path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)


def write_dataset(path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(path, num_shards=3)


def lines(rows=ROWS):
    return "".join(json.dumps(row) + "\n" for row in rows)


WRITERS = {
    "data.jsonl": lambda path: path.write_text(lines()),
    "data.jsonl.gz": lambda path: path.write_bytes(gzip.compress(lines().encode())),
    "data.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "lines.json": lambda path: path.write_text(lines()),
    "data.json.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "data.csv": write_csv,
    "DATA.CSV": write_csv,
    "data.tsv": lambda path: write_csv(path, "\t"),
    "data.parquet": write_parquet,
    "folder": write_dataset,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_problems(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    assert [row.values for row in read_table(str(path)).rows] == ROWS
    assert domain_of(str(path)) == "text"
    task = load_task(str(path), reward=load_reward("exact"))
    (tmp_path / "same.jsonl").write_text(lines())
    same = load_task(str(tmp_path / "same.jsonl"), reward=load_reward("exact"))
    assert task.division == same.division
    assert task.division.problems["train"][0].info == {"level": task.division.problems["train"][0].info["level"]}


def test_test_data_may_be_of_another_kind(tmp_path):
    write_csv(tmp_path / "data.csv")
    (tmp_path / "test.json").write_text(json.dumps([{"prompt": "new", "answer": "1"}]))
    task = load_task(str(tmp_path / "data.csv"), reward=load_reward("exact"), test_data=str(tmp_path / "test.json"))
    assert [problem.prompt for problem in task.sample(1, "test", np.random.default_rng(0))] == ["new"]


BAD = {
    "ragged.csv": (b"prompt,answer\na,1\nb,2,3\n", "line 3: 3 values for 2 columns (prompt, answer)"),
    "quoted.csv": (b'prompt,answer\n"a\n\nb",1\nc\n', "line 5: 1 values for 2 columns"),
    "twice.csv": (b"prompt,answer,answer\na,1,2\n", "line 1: the column 'answer' is there twice"),
    "nameless.csv": (b"prompt,,answer\na,1,2\n", "line 1: a column has no name"),
    "semicolons.csv": (b"prompt;answer\na;1\n", "separated by ';'. Save the file with commas"),
    "commas.tsv": (b"prompt,answer\na,1\n", "separated by ','. Save the file with tabs"),
    "open.csv": (b'prompt,answer\n"a,1\n', "line 2: unexpected end of data"),
    "latin.csv": (b"prompt,answer\na,1\n\xe9,2\n", "line 3: not UTF-8"),
    "header.csv": (b"prompt,answer\n", "is empty"),
    "empty.json": (b"[]", "is empty"),
    "cut.json": (b'[{"prompt": "a"},\n {"prompt"', "not JSON (Expecting ':' delimiter at line 2, column"),
    "numbers.json": (b"[1, 2]", 'row 1: a int, not an object with a "prompt"'),
    "plain.jsonl.gz": (b'{"prompt": "a"}', "is not a whole gzip file"),
    "cut.jsonl.gz": (gzip.compress(lines().encode())[:-9], "is not a whole gzip file"),
    "text.parquet": (b"PAR1 this is not one", "cannot be read as Parquet"),
    "empty.parquet": (b"", "cannot be read as Parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path, name):
    content, told = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError) as caught:
        read_table(str(tmp_path / name))
    assert told in str(caught.value) and name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_value_of_a_csv_is_read_and_the_limit_of_others_left_alone(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "long.csv").write_text("prompt,answer\n" + "x" * 200_000 + ",1\n")
    assert len(read_table(str(tmp_path / "long.csv")).rows[0].values["prompt"]) == 200_000
    assert csv.field_size_limit() == before


def test_reading_that_takes_seconds_is_said(tmp_path, monkeypatch):
    write_csv(tmp_path / "data.csv")
    assert read_table(str(tmp_path / "data.csv")).remarks == ()
    monkeypatch.setattr(table_files, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(table_files, "MANY_ROWS", 30)
    assert read_table(str(tmp_path / "data.csv")).remarks == ("Reading 30 rows took 0 s.",)


def test_nested_values_dates_and_numbers_of_parquet_become_plain_data(tmp_path):
    import datetime
    import decimal

    import pyarrow
    import pyarrow.parquet

    row = {
        "prompt": "a", "nested": {"x": [1, 2], "y": {"z": None, "t": "u"}}, "when": datetime.datetime(2026, 1, 2),
        "price": decimal.Decimal("1.50"), "missing": float("nan"),
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "data.parquet")
    found = read_table(str(tmp_path / "data.parquet")).rows[0].values
    assert json.loads(json.dumps(found)) == {
        **row, "when": "2026-01-02T00:00:00", "price": "1.50", "missing": None,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "a", "image": b"\x89PNG"}]), tmp_path / "image.parquet")
    with pytest.raises(TaskError, match=r"image.parquet, row 1: 'image' is a bytes, which is no text"):
        read_table(str(tmp_path / "image.parquet"))


def test_splits_of_a_dataset_on_disk(tmp_path):
    import datasets

    def saved(name, **splits):
        tables = {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}
        datasets.DatasetDict(tables).save_to_disk(tmp_path / name)
        return load_task(str(tmp_path / name), reward=load_reward("exact"))

    task = saved("both", train=ROWS[:20], test=ROWS[20:])
    assert len(task.division.problems["train"]) == 18 and len(task.division.problems["tune"]) == 2
    assert [problem.answer for problem in task.division.problems["test"]] == [row["answer"] for row in ROWS[20:]]
    three = saved("three", train=ROWS[:20], validation=ROWS[20:25], test=ROWS[25:])
    assert [len(three.division.problems[split]) for split in ("train", "tune", "test")] == [20, 5, 5]
    judged = saved("judged", train=ROWS[:20], validation=ROWS[20:])
    assert len(judged.division.problems["test"]) == 10
    assert "Its split 'validation' is the test split: it has no other." in judged.describe()
    with pytest.raises(TaskError, match=r"splits train_sft, train_gen, and what 'train_sft' is for.*strange/train_sft"):
        saved("strange", train_sft=ROWS[:20], train_gen=ROWS[20:])
    assert len(read_table(str(tmp_path / "strange" / "train_sft")).rows) == 20


def test_folders_that_no_library_wrote(tmp_path):
    (tmp_path / "folder" / "main").mkdir(parents=True)
    (tmp_path / "folder" / "main" / "train.parquet").touch()
    with pytest.raises(TaskError, match=r"not one that save_to_disk .*Give one of its files: .*folder/main/train.parquet"):
        read_table(str(tmp_path / "folder"))
    (tmp_path / "folder" / "state.json").write_text("{")
    with pytest.raises(TaskError, match=r"state.json' cannot be read"):
        load_task(str(tmp_path / "folder"), reward=load_reward("exact"))


def test_a_folder_with_the_name_of_a_task_does_not_hide_it(tmp_path, monkeypatch):
    write_dataset(tmp_path / "sort")
    monkeypatch.chdir(tmp_path)
    assert load_task("sort").name == "sort"
    write_dataset(tmp_path / "mine")
    with pytest.raises(TaskError, match=r"no task named 'mine'. The folder with a dataset is given as a path: ./mine"):
        load_task("mine")
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    write_csv(tmp_path / "openai" / "gsm8k" / "train.csv")
    with pytest.raises(TaskError, match=r"Give one of its files of problems: openai/gsm8k/train.csv"):
        load_task("openai/gsm8k")
    assert len(load_task("./sort", reward=load_reward("exact")).rows) == len(ROWS)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    write_parquet(tmp_path / "data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"needs pyarrow, which is not installed. Install with:\n .*\[data\]"):
        read_table(str(tmp_path / "data.parquet"))


@pytest.mark.parametrize(
    "spec", ["hf://datasets/openai/gsm8k/main/train.parquet", "https://huggingface.co/datasets/openai/gsm8k", "openai/gsm8k"]
)
def test_a_name_on_the_hub_is_refused_with_the_command_that_fetches_it(spec):
    with pytest.raises(TaskError) as caught:
        load_task(spec, reward=load_reward("exact"))
    said = str(caught.value)
    assert "hf download openai/gsm8k --repo-type dataset --local-dir gsm8k" in said and "--task gsm8k/FILE.parquet" in said
    assert "load_dataset('openai/gsm8k').save_to_disk('gsm8k')" in said and "--task ./gsm8k" in said
