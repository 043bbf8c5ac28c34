"""Data with answers and no reward: the one that finds most sampled answers right is taken, said in a line and kept."""

from __future__ import annotations

import json

import pytest

import upslope as up
from upslope.errors import Remark, TaskError
from upslope.rewards.choosing import choose
from upslope.tasks.text import Problem

SMALL = dict(
    model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, samples_per_task=2, warm_start=0.0, eval_problems=2, max_tokens=4
)  # fmt: skip
SUMS = [Problem(f"What is {i} + 2?", str(i + 2)) for i in range(20)]


def test_a_model_that_answers_in_sentences_gets_the_last_number():
    said = [f"The sum of {i} and 2 is {i + 2 + (i > 12)}." for i in range(20)]
    found = choose(SUMS, said)
    assert found.reward == "number" and found.found["number"] == 13 and found.found["exact"] == 0
    assert found.remark() == (
        "no reward was given. Of 20 sampled answers these would find right: number 13, exact 0, boxed 0, choice 0, contains 13. "
        "Taking number; --reward NAME takes another."
    )


def test_numbers_are_not_looked_for_anywhere_in_the_text():
    said = [f"{i + 2} or {i + 3}" for i in range(20)]
    found = choose(SUMS, said)
    assert found.found["contains"] == 20 and found.found["number"] == 0 and found.reward == "number"


LETTERS = {"choices": ["red", "green", "blue"]}


@pytest.mark.parametrize(
    ("answers", "info", "reward", "kind"),
    [
        (["12", "$3.50", "1/2"], {}, "number", "numbers"),
        (["6 * 7 = 42\n#### 42"], {}, "number", "numbers"),
        (["so it is \\boxed{x}", "\\boxed{2}"], {}, "boxed", "boxed"),
        (["A", "(C)"], {}, "choice", "single letters"),
        (["red", "blue"], LETTERS, "choice", "options"),
        (["\\frac{x}{2}", "x^2"], {}, "math-verify", "formulas"),
        (["Paris", "New York"], {}, "contains", "short texts"),
        (["Paris", "It is the one that everybody knows of."], {}, "exact", "long texts"),
    ],
)
def test_where_nothing_is_right_the_expected_answers_decide(answers, info, reward, kind):
    found = choose([Problem(f"p{n}", answer, info) for n, answer in enumerate(answers)], ["hm"] * len(answers))
    assert (found.reward, found.kind) == (reward, kind)
    assert f"Taking {reward}, since the expected answers are {kind}; --reward NAME takes another." in found.remark()


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {i} + {i}?", "answer": str(2 * i)}) + "\n" for i in range(40)))
    return str(file)


def test_a_run_without_a_reward_takes_one_and_keeps_it(data, tmp_path):
    with pytest.warns(Remark, match=r"no reward was given\. Of 20 sampled answers .* Taking number"):
        run = up.train("grpo", data, **SMALL, out=tmp_path / "run")
    assert run.table["reward"] == ["number"] and run.plan.reward == ("number",)
    assert up.load(run.path).policy is not None


def test_the_choice_draws_none_of_the_runs_random_numbers(data, tmp_path):
    with pytest.warns(Remark, match="no reward was given"):
        chosen = up.train("grpo", data, **SMALL, out=tmp_path / "chosen")
    given = up.train("grpo", data, reward="number", **SMALL, out=tmp_path / "given")
    assert (chosen.path / "samples.jsonl").read_bytes() == (given.path / "samples.jsonl").read_bytes()


def test_data_without_answers_are_refused_with_the_cure(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}\n')
    with pytest.raises(TaskError, match=r'needs a reward: line 2 has no "answer" that one could compare with. Give every row'):
        up.train("grpo", str(file), **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
