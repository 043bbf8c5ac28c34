"""``--train-problems N``: the same problems throughout, drawn by the seed, in every kind of task."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest

import upslope as up
from upslope.errors import UserError
from upslope.rewards import load_reward
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up, text
from upslope.tasks import load_task
from upslope.tasks.fixed import fix_problems

SMALL = {
    "model": "tiny:layers=1,width=32", "warm_start": 0.0, "steps": 3, "tasks_per_step": 4, "samples_per_task": 2,
    "eval_problems": 8, "schedule": "constant", "warmup": 0,
}  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def prompts(task, count=200, split="train", seed=0):
    return [problem.prompt for problem in task.sample(count, split, rng(seed))]


def test_a_generator_keeps_to_its_problems_and_its_other_splits_stay():
    task = load_task("reverse")
    fixed = fix_problems(task, 10, rng(1))
    assert len(set(prompts(fixed))) == 10 and set(prompts(fixed, seed=3)) == set(prompts(fixed))
    assert sorted(prompts(fixed, 10)) == sorted(set(prompts(fixed)))  # each once before any comes twice
    assert set(prompts(fixed)) == set(prompts(fix_problems(task, 10, rng(1)))) != set(prompts(fix_problems(task, 10, rng(2))))
    for split in ("tune", "test"):
        assert prompts(fixed, 50, split) == prompts(task, 50, split)
    assert fixed.remarks == () and fixed.name == "reverse"


def test_a_file_keeps_its_first_by_hash_and_its_kind(tmp_path):
    rows = [{"prompt": f"p{n}", "answer": str(n)} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[:20]]))
    task = load_task(str(tmp_path / "a.jsonl"), reward=load_reward("exact"))
    fixed = fix_problems(task, 5, rng())
    order = sorted({problem.id: problem.prompt for problem in task.division.problems["train"]}.items())
    assert set(prompts(fixed)) == {prompt for _, prompt in order[:5]}
    assert set(prompts(fix_problems(task, 6, rng()))) > set(prompts(fixed))
    assert fixed.division.problems["test"] == task.division.problems["test"] and "only" not in " ".join(fixed.remarks)
    assert "has only 28 different training problems: all are taken, not 500." in " ".join(fix_problems(task, 500, rng()).remarks)


def test_a_draw_that_takes_long_is_said(monkeypatch):
    said = []
    monkeypatch.setattr(text, "said_if_slow", lambda what: nullcontext(said.append(what)))
    settings = Settings(train_problems=1000, steps=1, tasks_per_step=2, warm_start=0.0)
    set_up(up.method("grpo"), "reverse", "tiny:layers=1,width=32", settings)
    assert said == ["drawing 1,000 training problems"]


def test_a_mixture_keeps_as_many_of_each_part():
    fixed = fix_problems(load_task("reverse+sort+sum"), 8, rng())
    assert [len(part.problems) for part in fixed.parts] == [3, 3, 2] and len(set(prompts(fixed))) == 8
    with pytest.raises(UserError, match="--train-problems 2 leaves some of the 3 parts"):
        fix_problems(load_task("reverse+sort+sum"), 2, rng())


def test_a_task_with_fewer_says_so():
    (told,) = fix_problems(load_task("reverse:length=2,letters=3"), 100, rng()).remarks
    assert "reverse:length=2,letters=3 has only" in told and "all are taken, not 100." in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"train_problems": 0}, "--train-problems is 0; it must be"),
        (
            {"train_problems": 3, "tasks_per_step": 4},
            "--train-problems 3 is fewer than the 4 of a step. Give at least 4, or --tasks-per-step 3.",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(given, told):
    with pytest.raises(UserError) as refused:
        Settings(**given)
    assert told in str(refused.value)


def test_the_default_size_of_a_step_counts_too(tmp_path):
    with pytest.raises(UserError, match="--train-problems 10 is fewer than the 32 of a step"):
        up.train("grpo", "reverse", model="tiny:layers=1,width=32", train_problems=10, out=tmp_path / "run")


def test_a_run_sees_only_these_problems_and_resumes_to_the_same_bits(tmp_path):
    whole = up.train("grpo", "reverse:length=2", train_problems=5, seed=7, record="all", out=tmp_path / "whole", **SMALL)
    assert whole.table["settings"]["train_problems"] == 5
    samples = [json.loads(line)["prompt"] for line in (tmp_path / "whole" / "samples.jsonl").read_text().splitlines()]
    assert 1 < len(set(samples)) <= 5
    up.train("grpo", "reverse:length=2", train_problems=5, seed=7, out=tmp_path / "part", **SMALL | {"steps": 1})
    longer = up.resume(tmp_path / "part", steps=3)
    assert [each["loss"] for each in longer.metrics] == [each["loss"] for each in whole.metrics]
    assert {p.prompt for p in longer.components.task.problems} == {p.prompt for p in whole.components.task.problems}
