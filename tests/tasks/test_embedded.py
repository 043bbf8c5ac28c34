"""Embedded tasks: splits that never meet, and answers that score."""

from __future__ import annotations

import ast
import itertools
import time
from collections import Counter

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.tasks import load_task
from upslope.tasks.embedded import ALPHABET, FAMILY, Pairs, evaluate_expression
from upslope.tasks.text import SPLITS, Problem, Scores

SPECS = [
    *FAMILY,
    "sort:length=7",
    "reverse:length=3,letters=26",
    "sum:digits=5",
    "brackets:depth=9,length=30",
    "countdown:numbers=4",
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- the embedded family -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_the_splits_of_a_task_never_meet(spec):
    task = load_task(spec)
    prompts = {split: {p.prompt for seed in range(3) for p in task.sample(200, split, rng(seed))} for split in SPLITS}
    assert all(prompts.values())
    for one, other in itertools.combinations(SPLITS, 2):
        assert not prompts[one] & prompts[other]


@pytest.mark.parametrize("spec", SPECS)
def test_reference_answers_are_right_and_spoilt_ones_are_not(spec):
    task = load_task(spec)
    problems = task.sample(200, "train", rng())
    answers = [p.answer for p in problems]
    assert task.score(problems, [f" {a}\n" for a in answers]) == Scores([1.0] * 200, [True] * 200, {"correct": [1.0] * 200})
    for spoil in (lambda a: a + "0", lambda a: "x" + a, lambda a: "", lambda a: a[:-1] + "?", lambda a: f"{a} {a}"):
        assert not any(task.score(problems, [spoil(a) for a in answers]).correct)


@pytest.mark.parametrize("spec", SPECS)
def test_prompts_and_answers_fit_the_alphabet_and_the_budget(spec):
    task = load_task(spec)
    problems = [p for split in SPLITS for p in task.sample(100, split, rng())]
    assert set("".join(p.prompt + p.answer for p in problems)) <= set(ALPHABET)
    assert max(len(p.answer) for p in problems) + 1 <= task.max_tokens
    assert len(set(ALPHABET)) == len(ALPHABET) <= 64


@pytest.mark.parametrize("spec", SPECS)
def test_a_sample_repeats_with_its_generator_and_a_task_with_its_name(spec):
    task = load_task(spec)
    assert task.sample(30, "train", rng(5)) == load_task(task.name).sample(30, "train", rng(5))
    assert task.sample(30, "train", rng(5)) != task.sample(30, "train", rng(6))
    assert load_task(task.name) == task


def test_what_the_answers_are():
    def of(spec):
        return load_task(spec).sample(300, "train", rng(1))

    assert all(p.answer == "".join(sorted(p.prompt[1:-1])) for p in of("sort"))
    assert all(p.answer == p.prompt[-2:0:-1] for p in of("reverse"))
    assert all(int(p.answer) == sum(map(int, p.prompt[:-1].split("+"))) for p in of("sum"))
    for problem in of("brackets"):
        text = problem.prompt[1:-1] + problem.answer
        while any(pair in text for pair in ("()", "[]", "{}", "<>")):
            text = text.replace("()", "").replace("[]", "").replace("{}", "").replace("<>", "")
        assert text == ""
        assert not set(problem.answer) & set("([{<")


def test_held_out_samples_are_distinct_while_there_are_enough():
    assert len({p.prompt for p in load_task("sort").sample(500, "test", rng())}) == 500
    pairs = load_task("pairs")
    held_out = [p.prompt for split in ("tune", "test") for p in pairs.sample(300, split, rng())]
    assert len(held_out) == 600  # filled up with repeats
    trained = {p.prompt for p in pairs.sample(20_000, "train", rng())}
    assert set(held_out) == {f"p{n}=" for n in range(2, 100)} - trained


def test_a_task_too_small_for_a_split_says_so():
    with pytest.raises(TaskError, match=r"reverse:length=2,letters=2.*'t\w+' split"):
        for split in SPLITS:
            load_task("reverse:length=2,letters=2").sample(1, split, rng())


def test_problems_are_made_many_at_once_and_few_in_vain(monkeypatch):
    task, asked = load_task("sort"), []
    generate = type(task).generate

    def counted(self, count, random):
        asked.append(count)
        return generate(self, count, random)

    monkeypatch.setattr(type(task), "generate", counted)
    assert len(task.sample(2000, "train", rng())) == 2000
    assert len(asked) <= 3 and sum(asked) <= 2.5 * 2000, "of five problems four are for training"


# -- countdown ---------------------------------------------------------------------------------------------------------


def by_python(text: str, numbers: list[int]) -> int | None:
    """What `evaluate_expression` must say, by another road: Python's own parser."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return None
    allowed = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Constant)
    used = Counter(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    if not all(isinstance(node, allowed) for node in ast.walk(tree)) or not used <= Counter(numbers):
        return None
    return eval(compile(tree, "", "eval"))


def test_the_evaluator_agrees_with_python_on_everything_short():
    numbers = [2, 3, 3]
    checked = 0
    for length in range(1, 6):
        for letters in itertools.product("23+-*()", repeat=length):
            text = "".join(letters)
            expected = by_python(text, numbers)
            checked += expected is not None
            assert evaluate_expression(text, numbers) == expected, text
    assert checked > 50


def test_the_evaluator_agrees_with_python_on_long_expressions():
    draws = rng(3)
    numbers = [int(n) for n in draws.integers(1, 100, 12)]
    valid = 0
    for _ in range(3000):
        pieces = [str(n) for n in draws.permutation(numbers)[: draws.integers(2, 8)]]
        while len(pieces) > 1:
            at = int(draws.integers(len(pieces) - 1))
            joined = pieces[at] + str(draws.choice(["+", "-", "*", " * "])) + pieces[at + 1]
            pieces[at : at + 2] = [f"({joined})" if draws.random() < 0.6 else joined]
        text = pieces[0]
        if draws.random() < 0.3:
            at = int(draws.integers(len(text)))
            text = text[:at] + str(draws.choice(list("+-*()1 "))) + text[at + 1 :]
        expected = by_python(text, numbers)
        valid += expected is not None
        assert evaluate_expression(text, numbers) == expected, text
    assert 2000 < valid < 3000


@pytest.mark.parametrize(
    "hostile",
    [
        "__import__('os').system('true')", "9**9**9**9**9", "2**3", "(" * 100_000, "(" * 120 + "2" + ")" * 120 + "(", "2" * 100_000,
        "2//3", "2/3", "2,3", "-2", "+2", "2+-3", "2 3", "02+3", "2+3+2", "2.0", "2_0", "٢", "2+3#", "2+3\x00", "2\n\n+",
        "lambda: 2", "()", "2()",
    ],
)  # fmt: skip
def test_the_evaluator_refuses_what_is_no_expression_of_the_numbers(hostile):
    started = time.process_time()
    assert evaluate_expression(hostile, [2, 3]) is None
    assert time.process_time() - started < 0.1


def test_deep_brackets_are_read_without_recursion():
    assert evaluate_expression("(" * 120 + "2" + ")" * 120, [2]) == 2


def test_countdown_takes_any_expression_with_the_value():
    task = load_task("countdown")
    problem = Problem("c2,7,3:13=", "2*3+7", {"numbers": [2, 7, 3], "target": 13})
    said = {"2*3+7": True, "7+3*2": True, "(7)+(2*3)": True, " 7 + 2 * 3": True, "13": False, "2*3+7+0": False, "7+3+3": False}
    assert task.score([problem] * len(said), list(said)).correct == list(said.values())


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_pairs_accepts_every_decomposition_and_knows_which_are_the_same():
    task = Pairs()
    problem = Problem("p27=", "13+14", {"total": 27})
    answers = [f"{a}+{27 - a}" for a in range(28)]
    assert all(task.score([problem] * 28, answers).correct)
    assert len({task.answer_class(problem, a) for a in answers}) == 14
    assert task.answer_class(problem, " 14+13\n") == "13+14"
    wrong = ["27", "13+15", "-1+28", "013+14", "13 + 14", "13+14+0", "1e1+17", "13+14=", "9" * 5000 + "+1"]
    assert not any(task.score([problem] * len(wrong), wrong).correct)


def test_references_of_pairs_differ_for_one_prompt():
    problems = load_task("pairs").sample(3000, "train", rng())
    large = max(problems, key=lambda p: p.info["total"]).prompt
    assert len({p.answer for p in problems if p.prompt == large}) > 10
