"""A JSONL file of one's own as a task: its splits, its scores, and lines that are wrong."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.rewards import load_reward
from upslope.tasks import load_task
from upslope.tasks.text import SPLITS, Scores


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def write(tmp_path):
    def written(lines, name="data.jsonl"):
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def load(path, **options):
    return load_task(path, reward=load_reward("exact"), **options)


def prompts(task, split):
    return {p.prompt for p in task.sample(1000, split, rng())}


def rows(count, **further):
    return [{"prompt": f"q{i}", "answer": i, **further} for i in range(count)]


def test_a_file_is_split_by_hash_in_exact_shares(write):
    task = load(write(rows(50)))
    parts = [prompts(task, split) for split in SPLITS]
    assert [len(part) for part in parts] == [35, 5, 10]
    assert len(set.union(*parts)) == 50
    assert load(write(rows(50)[::-1])).division.problems["test"] == task.division.problems["test"][::-1]


def test_scores_infos_and_correct_come_from_the_reward(write):
    def reward(prompts, responses, answers, infos):
        return {"reward": [i["weight"] for i in infos], "correct": [r == a for r, a in zip(responses, answers, strict=True)]}

    task = load_task(write([{"prompt": "1+1=", "answer": 2, "weight": 0.25}]), reward=reward)
    [problem] = task.sample(1, "train", rng())
    assert task.score([problem, problem], ["2", "3"]) == Scores([0.25, 0.25], [True, False], {"correct": [1.0, 0.0]})
    assert load(write(rows(1))).score([problem], [" 2"]).correct == [True]


def test_equal_prompts_stay_in_one_split(write):
    task = load(write(rows(40) + [{"prompt": f"q{i}", "answer": "x"} for i in range(40)]))
    assert not prompts(task, "train") & prompts(task, "test")


def test_fewer_than_ten_rows_are_shared_and_it_says_so(write):
    task = load(write(rows(9)))
    assert all(len(prompts(task, split)) == 9 for split in SPLITS)
    assert "Fewer than 10 different prompts: train, tune, test share them all." in task.describe()
    assert "share" not in load(write(rows(10))).describe()


def test_a_split_that_rows_name_is_kept(write):
    task = load(write([*rows(40), {"prompt": "held out", "answer": "a", "split": "test"}]))
    assert prompts(task, "test") == {"held out"}
    assert (len(prompts(task, "train")), len(prompts(task, "tune"))) == (36, 4)
    only = load(write(rows(12, split="train")))
    assert prompts(only, "test") == prompts(only, "train")
    assert "No rows for test: it shares those of train." in only.describe()
    with pytest.raises(TaskError, match="nothing to train on"):
        load(write(rows(12, split="test")))


def test_a_test_file_is_the_test_split_and_stays_out_of_training(write):
    task = load(write(rows(40)), test_data=write([{"prompt": "q3", "answer": "3"}, {"prompt": "new", "answer": "1"}], "test.jsonl"))
    assert prompts(task, "test") == {"q3", "new"}
    assert "q3" not in prompts(task, "train") | prompts(task, "tune")
    assert "1 rows that are also in the test file" in task.describe()


def test_nothing_comes_twice_before_everything_came_once(write):
    task = load(write(rows(20)))
    drawn = Counter(p.prompt for p in task.sample(30, "train", rng()))
    assert set(drawn.values()) == {2, 3} and len(drawn) == 14
    assert task.sample(0, "train", rng()) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": "x", ', "line 2: not JSON"),
        ('["prompt"]', 'line 2: a list, not an object with a "prompt"'),
        ('{"promt": "x"}', "line 2: no \"prompt\". Did you mean 'promt'?"),
        ('{"prompt": 3}', "line 2: \"prompt\" must be text and not empty, but is '3'"),
        ('{"prompt": ""}', 'line 2: "prompt" must be text and not empty'),
        ('{"prompt": "x", "answer": ["y"]}', 'line 2: "answer" must be text or a number'),
        ('{"prompt": "x", "answer": null}', 'line 2: "answer" must be text or a number'),
        (
            '{"prompt": "x", "split": "tests"}',
            "line 2: \"split\" must be one of train, tune, test, but is 'tests'. Did you mean 'test'",
        ),
        ('{"prompt": "x"}', "line 2: no \"answer\", which the reward exact compares with. The prompt begins 'x'"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"prompt": "x", "answer": ' + "1" * 5000 + "}", "line 2: not JSON (Exceeds the limit"),
        ('{"prompt": "x", "answer": NaN}', 'line 2: "answer" is nan, which no answer equals'),
        ('{"prompt": "x", "answer": -Infinity}', 'line 2: "answer" is -inf'),
    ],
)
def test_a_bad_line_is_named_and_quoted(write, line, told):
    path = write([{"prompt": "good", "answer": "yes"}, line])
    with pytest.raises(TaskError) as caught:
        load(path)
    assert f"{path}, {told}" in str(caught.value)
    assert line[:15] in str(caught.value) or "'tests'" in told or "begins 'x'" in told
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("line", ['{"prompt": "x\\ud800", "answer": "y"}', '{"prompt": "x", "answer": "\\udfff"}'])
def test_half_a_character_is_refused(write, line):
    with pytest.raises(TaskError, match=r"line 2: \"(prompt|answer)\" holds .u[d8f0]+, half of a character"):
        load(write([{"prompt": "good", "answer": "yes"}, line]))


def test_files_that_are_missing_empty_or_not_text(write, tmp_path):
    write(rows(1), "problems.jsonl")
    with pytest.raises(TaskError, match=r"looked for .*Did you mean 'problems.jsonl'"):
        load(str(tmp_path / "problem.jsonl"))
    with pytest.raises(TaskError, match="is empty"):
        load(write(["", "  "]))
    (tmp_path / "latin.jsonl").write_bytes(b'\n{"prompt": "\xe9"}')
    with pytest.raises(TaskError, match="line 2: not UTF-8"):
        load(str(tmp_path / "latin.jsonl"))


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    (tmp_path / "windows.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}\r\n\r\n{"prompt": "c", "answer": "d"}\r\n'
    )
    assert prompts(load(str(tmp_path / "windows.jsonl")), "train") == {"a", "c"}
