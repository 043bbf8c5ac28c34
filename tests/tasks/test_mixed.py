"""Several tasks as one: what a text with a plus means, problems of each part, each scored by its own, and runs on them."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import upslope as up
from upslope.cli import main
from upslope.errors import TaskError, UserError
from upslope.rewards import load_reward
from upslope.tasks import load_task
from upslope.tasks.kinds import domain_of, kind_of, mixture_of
from upslope.tasks.mixed import MixedTask
from upslope.tasks.text import SPLITS, Problem

SMALL = {
    "model": "tiny:layers=1,width=32", "warm_start": 0.0, "steps": 2, "tasks_per_step": 4, "samples_per_task": 2,
    "eval_problems": 12, "max_tokens": 4, "schedule": "constant", "warmup": 0,
}  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def lines(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# -- the text ----------------------------------------------------------------------------------------------------------------


def test_a_plus_between_tasks_mixes_and_any_other_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "a", "answer": "b"}
    for name in ("one.jsonl", "a+b.jsonl", "reverse+sort.jsonl"):
        lines(tmp_path / name, row)
    assert mixture_of("reverse:length=3+sort") == mixture_of(" reverse:length=3 + sort") == ("reverse:length=3", "sort")
    assert mixture_of("one.jsonl+reverse+./a+b.jsonl") == ("one.jsonl", "reverse", "./a+b.jsonl")
    operators = 'reasoning-gym:basic_arithmetic:operators=["+","-"]'
    assert mixture_of(f"{operators}+sort") == (operators, "sort") and mixture_of(operators) == (operators,)
    for alone in ("reverse", "a+b.jsonl", "reverse+sort.jsonl", "no+such.jsonl", "hub/a+b", "x+y", "sort:length=3+4"):
        assert mixture_of(alone) == (alone,)
    assert mixture_of("{run}/data/a+b.jsonl+{run}/data/c.jsonl") == ("{run}/data/a+b.jsonl", "{run}/data/c.jsonl")
    assert mixture_of("{run}/data/c.jsonl+/far/away/a+b.jsonl+sort")[0] != "{run}/data/c.jsonl"  # there is no such file
    assert (kind_of("reverse+sort"), domain_of("reverse+sort"), kind_of("a+b.jsonl")) == ("mixed", "text", "data")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("reverse+", "'reverse+' mixes tasks: nothing stands on one side of a plus."),
        ("reverse++sort", "nothing stands on one side of a plus"),
        ("reverse+revers", "'reverse+revers' mixes tasks: no task named 'revers'. Did you mean 'reverse'?"),
        ("reverse+none.jsonl", "mixes tasks: no file 'none.jsonl' (looked for /"),
        ("reverse+gym:CartPole-v1", "'gym:CartPole-v1' is an environment. Leave it out."),
        ("reverse+sort+reverse", "names 'reverse' twice. Leave one out"),
        ("reverse+sort:lenght=3", "sort has no knob 'lenght'"),
        ("reverse+one.jsonl", "mixes in 'one.jsonl', which has no reward of its own. Give one: --reward exact."),
        ("one.jsonl+far/one.jsonl", "names 'one.jsonl' twice"),
        ("reverse+own.py:Own", "'own.py:Own' is a task of your own, which a text cannot mix; mix it in Python"),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_the_piece(tmp_path, monkeypatch, spec, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far").mkdir()
    for name in ("one.jsonl", "far/one.jsonl"):
        lines(tmp_path / name, {"prompt": "a", "answer": "b"})
    (tmp_path / "own.py").write_text("raise SystemExit('it must not be run')")
    with pytest.raises(TaskError) as refused:
        load_task(spec, reward=load_reward("exact") if "far" in spec else None)
    assert told in str(refused.value)


def test_flags_of_files_go_with_files(tmp_path):
    file = lines(tmp_path / "one.jsonl", {"question": "a", "answer": "b"})
    task = load_task(f"{file}+reverse", reward=load_reward("exact"), columns="prompt=question")
    assert {p.prompt for p in task.sample(8, "train", rng()) if p.category == "one.jsonl"} == {"a"}
    with pytest.raises(TaskError, match=r"--columns 'prompt=q' goes with a file of problems; 'reverse\+sort' has none"):
        load_task("reverse+sort", columns="prompt=q")
    with pytest.raises(TaskError, match=r"--test-data 'x.jsonl' goes with one file of problems"):
        load_task("reverse+sort", test_data="x.jsonl")


# -- problems ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_each_part_comes_equally_often_and_the_category_says_which(split):
    task = load_task("reverse:length=3+sort+sum")
    shares = Counter[str]()
    for seed in range(30):
        drawn = Counter(problem.category for problem in task.sample(8, split, rng(seed)))
        assert set(drawn) == {"reverse:length=3", "sort", "sum"} and set(drawn.values()) == {2, 3}
        shares += drawn
    assert max(shares.values()) - min(shares.values()) < 20
    assert load_task(task.name) == task
    assert task.sample(8, split, rng(1)) == task.sample(8, split, rng(1)) != task.sample(8, split, rng(2))


def test_each_is_scored_by_its_own_part_and_what_does_not_apply_is_not_a_number():
    task = load_task("sort+grounding+recommend")
    problems = task.sample(30, "train", rng())
    scores = task.score(problems, [problem.answer for problem in problems])
    for row, problem in enumerate(problems):
        alone = load_task(problem.category)
        own = alone.score([task._own(problem)], [problem.answer])
        assert (scores.reward[row], scores.correct[row]) == (own.reward[0], True)
        for name, column in scores.components.items():
            assert column[row] == own.components[name][0] if name in own.components else math.isnan(column[row])
        assert scores.items[row] == (own.items[0] if own.items else [])
        assert task.answer_class(problem, " x ") == alone.answer_class(problem, " x ")
    assert task.max_tokens == max(load_task(name).max_tokens for name in ("sort", "grounding", "recommend"))
    assert task.separator == "" and load_task("sort+sum").separator == "\n"


def test_hooks_are_those_of_the_part_and_categories_of_its_own_stay_its_own(tmp_path):
    rows = [{"prompt": f"p{n}", "answer": "b", "category": "mine", "hints": ["x"], "difficulty": 1} for n in range(3)]
    file = lines(tmp_path / "one.jsonl", *rows)
    task = load_task(
        f"{file}+reverse", reward=lambda prompts, responses, answers, infos: [float(i["category"] == "mine") for i in infos]
    )
    problems = task.sample(12, "train", rng())
    for problem in problems:
        mine = problem.category == "one.jsonl"
        assert task.hints(problem)[0] == ("x" if mine else problem.answer[0])
        harder = task.harder(problem, rng())
        assert harder is None if mine else harder is not None and (harder.category, harder.difficulty) == ("reverse", 6)
        assert task.score([problem], ["b"]).reward == [float(mine)]
    assert task.gives() == {"answers", "solutions", "hints", "levels", "categories"}
    plain = lines(tmp_path / "two.jsonl", {"prompt": "a", "answer": "b"})
    assert load_task(f"{plain}+reverse", reward=load_reward("exact")).first_without("hints").endswith("two.jsonl, line 1")
    with pytest.raises(TaskError, match=r"'foreign' is no problem of 'sort\+sum'"):
        load_task("sort+sum").score([Problem("foreign")], ["x"])


def test_parts_that_pay_differently_are_told_and_others_are_not(tmp_path):
    (told,) = load_task("sort+grounding").remarks
    assert "pay differently for a right answer (sort 1, grounding 1.375)" in told
    assert load_task("sort+recommend+reasoning-gym:chain_sum").remarks == ()
    rows = [{"prompt": f"p{n}", "answer": "b", "split": "train" if n else "test"} for n in range(4)]
    other = [row | {"split": "test" if row["split"] == "train" else "train"} for row in rows]
    mixed = f"{lines(tmp_path / 'one.jsonl', *rows)}+{lines(tmp_path / 'two.jsonl', *other)}"
    assert any(
        "3 training prompts of one.jsonl are held out in two.jsonl" in each
        for each in load_task(mixed, reward=load_reward("exact")).remarks
    )


# -- runs ----------------------------------------------------------------------------------------------------------------------


def test_a_run_on_a_mixture_with_a_file_goes_on_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "my+sums.jsonl", *({"prompt": f"{n}+1=", "answer": n + 1} for n in range(12)))
    run = up.train("grpo", "reverse:length=2+my+sums.jsonl", reward="exact", out=tmp_path / "run", **SMALL)
    whole = up.train("grpo", "reverse:length=2+my+sums.jsonl", reward="exact", out=tmp_path / "whole", **SMALL | {"steps": 4})
    assert run.table["task"] == "reverse:length=2+{run}/data/my+sums.jsonl"
    (first, *_, last) = [each for each in run.evaluations]
    assert {"score_reverse:length=2", "score_my+sums.jsonl"} <= first.keys() and first.keys() == last.keys()
    counted = [last["score_reverse:length=2"], last["score_my+sums.jsonl"]]
    assert min(counted) <= last["score"] <= max(counted)
    (tmp_path / "my+sums.jsonl").unlink()
    monkeypatch.chdir(tmp_path / "run")
    longer = up.resume(tmp_path / "run", steps=4)
    assert longer.plan.task_name == "reverse:length=2+my+sums.jsonl"
    assert len(longer.metrics) == len(whole.metrics) == 4
    assert [each["reward"] for each in longer.metrics] == [each["reward"] for each in whole.metrics]
    assert main(["eval", str(tmp_path / "run"), "--k", "1", "--problems", "6"]) == 0
    said = capsys.readouterr().out
    assert "greedy on my+sums.jsonl: " in said and "greedy on reverse:length=2: " in said
    (tmp_path / "run" / "data" / "my+sums.jsonl").write_text("{}")
    with pytest.raises(UserError, match="has changed since"):
        up.load(tmp_path / "run").plan  # noqa: B018


def test_a_mixture_in_python_and_prompts_that_do_not_fit(tmp_path):
    mixed = MixedTask((load_task("sort:length=2"), load_task("reverse:length=2")))
    run = up.train("grpo", mixed, out=tmp_path / "run", **SMALL)
    assert run.components.task.labels == ("sort:length=2", "reverse:length=2")
    file = lines(tmp_path / "one.jsonl", {"prompt": "a" * 3000, "answer": "b"})
    with pytest.raises(TaskError, match=r"one.jsonl, line 1: the prompt has \d+ tokens"):
        up.train("grpo", f"sort+{file}", reward="exact", out=tmp_path / "long", **SMALL)
