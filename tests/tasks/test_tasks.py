"""Tasks: splits that never meet, answers that score, and files and names that are wrong."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.rewards import load_reward
from upslope.tasks import list_tasks, load_task
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


def test_sampling_is_fast():
    task = load_task("sort")
    task.sample(1, "train", rng())
    started = time.perf_counter()
    task.sample(2000, "train", rng())
    assert time.perf_counter() - started < 0.5


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
    started = time.perf_counter()
    assert evaluate_expression(hostile, [2, 3]) is None
    assert time.perf_counter() - started < 0.1


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


# -- names and knobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("revers", f"no task named 'revers'. Did you mean 'reverse'? 'upslope tasks' lists all {len(list_tasks())}."),
        ("sort:lenght=6", "sort has no knob 'lenght'. Did you mean 'length'? Its knobs: length."),
        ("sort:length=six", "sort: length='six' must be a whole number from 2 to 64."),
        ("sort:length=0", "sort: length=0 must be a whole number from 2 to 64."),
        ("sort:length=true", "sort: length=True must be a whole number"),
        ("sort:length=", "'length=' in 'sort:length=' is not of the form knob=value."),
        ("sort:length=3,length=4", "'length' is given twice"),
        ("reasoning-gym", "lacks the name behind the colon"),
        ("no/such.jsonl", "needs a reward"),
    ],
)
def test_what_is_wrong_in_a_name_is_said(spec, told):
    with pytest.raises(TaskError) as caught:
        load_task(spec)
    assert told in str(caught.value)


def test_data_for_a_task_that_takes_none_is_refused(tmp_path):
    with pytest.raises(TaskError, match="goes with a JSONL file"):
        load_task("sort", test_data="test.jsonl")
    with pytest.raises(TaskError, match="pays its own reward"):
        load_task("gym:CartPole-v1", reward=load_reward("exact"))
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(TaskError, match=r"is not a \.jsonl file"):
        load_task(str(tmp_path / "data.json"))


def test_another_reward_leaves_what_is_correct_to_the_task():
    task = load_task("sort", reward=lambda prompts, responses, answers: [float(len(r)) for r in responses])
    problems = task.sample(2, "train", rng())
    scores = task.score(problems, [problems[0].answer, "no"])
    assert (scores.reward, scores.correct) == ([5.0, 2.0], [True, False])


def test_listing_tasks_loads_nothing_heavy():
    program = (
        "import sys; from upslope.tasks import list_tasks, load_task; import upslope.rewards; list_tasks(); load_task('sort');"
        "print([m for m in ('torch', 'transformers', 'reasoning_gym', 'gymnasium', 'math_verify', 'sympy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_listed_embedded_task_loads():
    assert {info.name for info in list_tasks() if info.domain == "text"} >= set(FAMILY)
    assert all(load_task(name).describe() == next(i.description for i in list_tasks() if i.name == name) for name in FAMILY)


# -- a file of one's own -----------------------------------------------------------------------------------------------


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


def test_a_task_under_another_reward_ends_its_items_as_before():
    own = load_task("recommend")
    assert load_task("recommend", reward=load_reward("exact")).separator == own.separator != "\n"
