"""What problems and tasks say beyond prompt and score: keys of lines, hooks of tasks, and methods that need more than there is."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.methods import find
from upslope.methods.rlvr.grpo import grpo
from upslope.methods.rlvr.tempsamp_r1 import tempsamp_r1
from upslope.objective.data.ground_truth import GroundTruth
from upslope.rewards import load_reward
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import FAMILY, Problem, WithReward, load_task
from upslope.tasks.fitting import OnlyFitting
from upslope.tasks.text import Scores, TextTask, split_of

FULL = {
    "prompt": "2+2=", "answer": "4", "solution": "2 and 2 are 4", "hints": ["even", "4"], "documents": ["Sums."], "category": "sum",
    "difficulty": 2,
}  # fmt: skip


SIZED = [name for name, task in FAMILY.items() if task.grows_by and name != "rulebook"]
"""Tasks whose difficulty is a size; the levels of a rulebook have tests of their own, and rps has one problem."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def load(tmp_path):
    def loaded(*rows, columns="", name="my.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_task(str(tmp_path / name), reward=load_reward("exact"), columns=columns)

    return loaded


def said(problem: Problem) -> tuple:
    return problem.solution, problem.hints, problem.documents, problem.category, problem.difficulty


# -- lines -----------------------------------------------------------------------------------------------------------------


def test_a_line_may_say_more_of_its_problem_and_the_reward_still_sees_it(load):
    task = load(FULL, {"prompt": "a", "answer": "b"})
    full, bare = (row.problem for _, row in task.rows)
    assert said(full) == ("2 and 2 are 4", ("even", "4"), ("Sums.",), "sum", 2.0)
    assert said(bare)[:4] == ("b", (), (), "") and math.isnan(bare.difficulty)
    assert full.info == {key: value for key, value in FULL.items() if key not in ("prompt", "answer")}
    assert full.id == Problem("2+2=").id


@pytest.mark.parametrize("missing", [None, ""])
def test_a_missing_value_is_no_mistake(load, missing):
    task = load(
        {"prompt": "a", "answer": "b", **dict.fromkeys(("solution", "hints", "documents", "category", "difficulty"), missing)}
    )
    (_, row), *_ = task.rows
    assert said(row.problem)[:4] == ("b", (), (), "") and math.isnan(row.problem.difficulty)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("hints", "think", '"hints" must be a list of texts, from weak to strong'),
        ("hints", ["a", 3], '"hints" must be a list of texts'),
        ("documents", {"a": "b"}, '"documents" must be a list of texts'),
        ("difficulty", "hard", "\"difficulty\" must be a number, larger for harder problems, but is 'hard'"),
        ("difficulty", True, '"difficulty" must be a number'),
        ("category", ["a"], '"category" must be text'),
        ("solution", ["a"], '"solution" must be text'),
    ],
)
def test_values_of_the_wrong_kind_are_refused_with_file_line_key_and_cure(load, key, value, told):
    rows = ({"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d", key: value})
    with pytest.raises(TaskError) as refused:
        load(*rows)
    assert "my.jsonl, line 2: " + told in str(refused.value)
    assert f"--columns {key}= leaves it to your reward" in str(refused.value)
    problem = load(*rows, columns=f"{key}=").rows[1][1].problem
    assert problem.info[key] == value and said(problem)[:4] == ("d", (), (), "") and math.isnan(problem.difficulty)


def test_columns_of_other_names_say_the_same_and_one_may_be_told_to_mean_something_else(load):
    task = load(
        {"prompt": "a", "answer": "b", "subject": "algebra", "level": 3, "category": "x"},
        columns="category=subject,difficulty=level",
    )
    (_, row), *_ = task.rows
    assert (row.problem.category, row.problem.difficulty) == ("algebra", 3.0)
    assert row.problem.info["subject"] == "algebra" and row.problem.info["level"] == 3
    (_, row), *_ = load(FULL, columns="difficulty=,hints=").rows
    assert math.isnan(row.problem.difficulty) and row.problem.hints == () and row.problem.category == "sum"


def test_a_table_without_lists_and_numbers_holds_them_as_text(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,answer,hints,difficulty,category\na,b,"[""x"", ""y""]",2.5,7\n')
    (_, row), *_ = load_task(str(tmp_path / "a.csv"), reward=load_reward("exact")).rows
    assert (row.problem.hints, row.problem.difficulty, row.problem.category) == (("x", "y"), 2.5, "7")
    (tmp_path / "b.csv").write_text("prompt,answer,hints\na,b,[x\n")
    with pytest.raises(TaskError, match=r'b.csv, line 2: "hints" must be a list'):
        load_task(str(tmp_path / "b.csv"), reward=load_reward("exact"))


# -- what is given ---------------------------------------------------------------------------------------------------------


def test_data_give_what_every_training_line_has(load):
    everything = {"answers", "solutions", "hints", "documents", "categories", "levels"}
    assert load(FULL).gives() == everything
    assert load(FULL, FULL | {"prompt": "x", "hints": []}).gives() == everything  # it says that it has none
    bare = {"prompt": "x", "answer": "y"}
    assert load(FULL, bare).gives() == {"answers", "solutions"}
    assert load(bare, bare | {"prompt": "z", "hints": []}).gives() == {"answers", "solutions"}
    assert load(*[FULL | {"prompt": str(n), "hints": []} for n in range(3)]).gives() == everything - {"hints"}


def test_where_the_first_line_stands_that_lacks_it_tells_of_training_lines_only(load):
    task = load(FULL, {"prompt": "t", "answer": "u", "split": "test"}, {"prompt": "x", "answer": "y"})
    assert task.first_without("hints").endswith("my.jsonl, line 3")
    assert task.first_without("answers") == task.first_without("variants") == ""


def refusal(monkeypatch, task, word, **further):
    """What is said where the method's part needs what a word stands for."""
    monkeypatch.setattr(GroundTruth, "needs_of_task", frozenset({word}))
    with pytest.raises(TaskError) as refused:
        set_up(tempsamp_r1, str(task), "tiny", Settings(), **further)
    return str(refused.value)


def test_a_method_that_needs_more_is_refused_with_the_line_or_the_task_and_the_cure(tmp_path, monkeypatch):
    (tmp_path / "my.jsonl").write_text(json.dumps(FULL) + "\n" + json.dumps({"prompt": "x", "answer": "y"}) + "\n")
    told = refusal(monkeypatch, tmp_path / "my.jsonl", "hints", reward=["exact"])
    assert 'my.jsonl, line 2: no "hints", and tempsamp-r1 needs hints (data' in told and "a list of texts" in told
    told = refusal(monkeypatch, "reverse", "documents")
    assert "tempsamp-r1 needs documents" in told and "'reverse' gives none; 'upslope tasks' says which tasks do." in told
    told = refusal(monkeypatch, tmp_path / "my.jsonl", "variants", reward=["exact"])
    assert "needs variants" in told and "take a task that makes its own" in told


def test_a_method_that_imitates_answers_is_refused_where_a_line_has_none(tmp_path):
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "c"}]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match=r'my.jsonl, line 2: no "answer", and tempsamp-r1 needs answers \(data'):
        set_up(tempsamp_r1, str(tmp_path / "my.jsonl"), "tiny", Settings(), reward=["json"])


def test_a_method_that_compares_categories_is_refused_where_there_is_only_one(tmp_path):
    lines = [{"prompt": str(number), "answer": "b", "category": "sums"} for number in range(300)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = r"sec needs several categories \(curriculum\), and every problem of '{}' that was looked at is of '{}'. Mix several"
    with pytest.raises(TaskError, match=told.format("reverse:length=3", "reverse")):
        set_up(find("sec"), "reverse:length=3", "tiny", Settings())
    with pytest.raises(TaskError, match=told.format(r".*my.jsonl", "sums") + '.*"category"'):
        set_up(find("sec"), str(tmp_path / "my.jsonl"), "tiny", Settings(), reward=["exact"])
    lines[7]["category"] = "lengths"  # one of 250 is found: a draw goes through all lines before one comes twice
    (tmp_path / "my.jsonl").write_text("".join(json.dumps({**line, "split": "train"}) + "\n" for line in lines[:250]))
    for task, reward in (("reverse:length=3+reverse:length=4", ()), (tmp_path / "my.jsonl", ["exact"])):
        set_up(find("sec"), str(task), "tiny:layers=1,width=32", Settings(), reward=reward)


def test_a_method_without_needs_does_not_look(monkeypatch):
    monkeypatch.setattr(FAMILY["reverse"], "gives", lambda self: 1 / 0)
    set_up(grpo, "reverse:length=3", "tiny", Settings())


# -- tasks that are made on the spot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZED)
def test_embedded_tasks_give_hints_levels_categories_and_variants(name):
    task = FAMILY[name]()
    assert task.gives() >= {"answers", "solutions", "hints", "categories", "levels", "variants"}
    problem = task.sample(1, "train", rng())[0]
    assert problem.category == name and problem.difficulty >= 1 and problem.solution == problem.answer
    hints = task.hints(problem)
    assert [len(hint) for hint in hints] == [*range(1, len(problem.answer) + 1)] and hints[-1] == problem.answer
    assert all(later.startswith(hint) for hint, later in itertools.pairwise(hints))


@pytest.mark.parametrize("name", SIZED)
def test_variants_are_training_problems_of_the_next_size_that_fit(name):
    task = FAMILY[name]()
    found = 0
    for problem in task.sample(20, "train", rng(1)):
        for larger, make in ((1, task.harder), (-1, task.easier), (0, task.alike)):
            other = make(problem, rng(2))
            if other is None:
                continue
            found += 1
            assert other.difficulty == problem.difficulty + larger and other.category == name
            assert other.prompt != problem.prompt and split_of(other.prompt) == "train"
            assert len(other.answer) < task.max_tokens and task.score([other], [other.answer]).correct == [True]
            assert make(problem, rng(2)) == other
    assert found >= 20


def test_renamed_letters_keep_the_pattern():
    task = load_task("reverse:length=6,letters=8")
    problem = Problem("raabcbb=", "bbcbaa", {"category": "reverse", "difficulty": 6})
    other = task.alike(problem, rng())
    assert other is not None and other.answer == other.prompt[-2:0:-1]
    assert [other.prompt.index(letter) for letter in other.prompt] == [problem.prompt.index(letter) for letter in problem.prompt]


def test_harder_ends_where_an_answer_no_longer_fits_or_where_it_is_told_to():
    task = load_task("reverse:length=3")
    harder = task.harder(task.sample(1, "train", rng())[0], rng())
    assert harder is not None and harder.difficulty == 4 and task.harder(harder, rng()) is None
    far = load_task("reverse:length=3,hardest=6")
    assert (far.name, far.max_tokens) == ("reverse:length=3,hardest=6", load_task("reverse:length=6").max_tokens)
    problem, sizes = far.sample(1, "train", rng())[0], []
    while problem is not None:
        sizes.append(problem.difficulty)
        problem = far.harder(problem, rng())
    assert sizes == [3, 4, 5, 6]
    assert far.sample(5, "train", rng()) == task.sample(5, "train", rng())
    with pytest.raises(TaskError, match=r"reverse: hardest=99 is no size that it has. reverse: length=99 must be a whole number"):
        load_task("reverse:hardest=99")
    assert task.harder(Problem("rab=", "ba"), rng()) is None  # nobody knows how hard it is


# -- tasks about tasks, and of one's own -----------------------------------------------------------------------------------


def test_wrapped_tasks_pass_everything_on():
    task = load_task("sort")
    problem = task.sample(1, "train", rng())[0]
    for wrapped in (WithReward(task, load_reward("exact")), OnlyFitting(task, lambda prompts: [True] * len(prompts))):
        assert wrapped.hints(problem) == task.hints(problem) and wrapped.gives() == task.gives()
        for name in ("harder", "easier", "alike"):
            assert getattr(wrapped, name)(problem, rng()) == getattr(task, name)(problem, rng()) is not None
    narrow = OnlyFitting(task, lambda prompts: [len(prompt) <= len(problem.prompt) for prompt in prompts])
    assert narrow.harder(problem, rng()) is None and narrow.alike(problem, rng()) is not None


class Own(TextTask):
    """Says more of every second problem."""

    name, max_tokens = "own", 4

    def sample(self, count, split, rng):
        return [Problem(f"p{n}", str(n), {"category": "c", **({"difficulty": n} if n % 2 else {})}) for n in range(count)]

    def score(self, problems, responses):
        return Scores([0.0] * len(responses), [False] * len(responses))

    def describe(self):
        return "Own."


def test_a_task_of_ones_own_gives_what_its_problems_show():
    assert Own().gives() == {"answers", "solutions", "categories"}
    assert type("Growing", (Own,), {"harder": lambda self, problem, rng: problem})().gives() == Own().gives() | {"variants"}


@pytest.mark.parametrize(
    ("method", "does", "told"),
    [
        ("hints", "return 'abc'", "own.py:Own.hints returned 'abc'; it must return texts, from weak to strong."),
        ("hints", "return [1]", "hints returned [1]"),
        ("harder", "return 'abc'", "own.py:Own.harder returned 'abc'; it must return a Problem or None."),
        ("alike", "return 1 / 0", "own.py:Own.alike raised ZeroDivisionError"),
        ("gives", "return 'hints'", "own.py:Own.gives returned 'hints'; it must return a set of: answers, solutions"),
        ("gives", "return {'hint'}", "gives returned {'hint'}; it must return a set of"),
    ],
)
def test_what_a_hook_of_ones_own_returns_is_looked_at(tmp_path, method, does, told):
    (tmp_path / "own.py").write_text(
        "from upslope.tasks import Problem, Scores, TextTask\n\nclass Own(TextTask):\n    name, max_tokens = 'own', 4\n"
        "    def sample(self, count, split, rng):\n        return [Problem('p', 'a')] * count\n"
        "    def score(self, problems, responses):\n        return Scores([0.0] * len(responses), [False] * len(responses))\n"
        f"    def describe(self):\n        return ''\n    def {method}(self, *given):\n        {does}\n"
    )
    task = load_task(f"{tmp_path / 'own.py'}:Own")
    arguments = () if method == "gives" else (Problem("p", "a"),) if method == "hints" else (Problem("p", "a"), rng())
    with pytest.raises(TaskError) as refused:
        getattr(task, method)(*arguments)
    assert told in str(refused.value)
