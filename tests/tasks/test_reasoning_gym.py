"""reasoning-gym's datasets as tasks: loading, scoring, and answers that must never be executed."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from upslope.errors import MissingExtra, TaskError
from upslope.tasks import list_tasks, load_task
from upslope.tasks.reasoning_gym import INSTRUCTION, extract_answer, is_harmless
from upslope.tasks.text import SPLITS


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


needs_reasoning_gym = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="not installed")


@needs_reasoning_gym
@pytest.mark.parametrize("name", ["chain_sum:max_terms=3", "spell_backward", "countdown", "n_queens:size=50"])
def test_reasoning_gym_from_sample_to_score(name):
    task = load_task(f"reasoning-gym:{name}")
    assert load_task(task.name) == task
    drawn = {split: task.sample(6, split, rng()) for split in SPLITS}
    problems = [p for split in SPLITS for p in drawn[split]]
    assert len({p.prompt for p in problems}) > 15
    assert all(p.prompt.endswith(INSTRUCTION) for p in problems)
    assert max(len(p.answer) for p in problems) < task.max_tokens
    for form in ("{}", " {}\n", "I think <answer>5</answer>, no: <answer> {} </answer> done."):
        assert all(task.score(problems, [form.format(p.answer) for p in problems]).correct)
    for wrong in ("", "nonsense ((", "<answer>"):
        assert not any(task.score(problems, [wrong] * len(problems)).correct)
    assert [p.prompt for p in task.sample(6, "train", rng())] == [p.prompt for p in drawn["train"]]


@needs_reasoning_gym
def test_reasoning_gym_gives_partial_rewards_and_counts_what_it_cannot_score():
    task = load_task("reasoning-gym:prime_factorization")
    [problem] = task.sample(1, "train", rng())
    scores = task.score([problem] * 2, ["garbage ((", problem.answer])
    assert (scores.reward, scores.components["unscored"]) == ([0.0, 1.0], [1.0, 0.0])
    backward = load_task("reasoning-gym:spell_backward")
    [problem] = backward.sample(1, "test", rng(1))
    scores = backward.score([problem], [problem.answer[:-1] + "?"])
    assert 0 < scores.reward[0] < 1 and scores.correct == [False]


@needs_reasoning_gym
@pytest.mark.parametrize("name", ["spiral_matrix", "n_queens", "countdown", "polynomial_multiplication", "string_insertion"])
def test_no_answer_is_ever_executed(name, tmp_path):
    task = load_task(f"reasoning-gym:{name}")
    [problem] = task.sample(1, "train", rng())
    mark = tmp_path / "executed"
    hostile = [f"open({str(mark)!r}, 'w')", f"__import__('pathlib').Path({str(mark)!r}).touch()", "9**9**9**9", "exit()"]
    scores = task.score([problem] * 4, hostile)
    assert scores.reward == [0.0] * 4 and scores.components["unscored"] == [1.0] * 4
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["[[1, 2], [3, -4]]", "x**2*3/2 + C", "exp(3*x)*sin(x)", "(x**2 + 1)**3", "['a', 'b']", "2**(3*x)"]
)
def test_literals_and_formulas_are_harmless(text):
    assert is_harmless(text, not_python=False)


@pytest.mark.parametrize(
    "text",
    ["f(1)", "x.y", "().__class__", "[0]*10**9", "'a'*10**9", "2**(9**9)", "2**99999", "[a for a in x]", "lambda: 0", "x[0]", "_x",
     "2**(60*60*60)", "x" * 5000, "((((((2**60)**60)**60)**60)**60)**60)", "5!", "1 << 99"],
)  # fmt: skip
def test_programs_are_not_harmless(text):
    assert not is_harmless(text, not_python=False)


def test_the_last_tagged_answer_counts_and_only_if_closed():
    assert extract_answer("a <answer>1</answer> b <answer> 2 </answer> c") == "2"
    assert extract_answer(" <answer>1 ") == "<answer>1"
    assert extract_answer(" 7\n") == "7"


@needs_reasoning_gym
@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("chain_sums", "no reasoning-gym dataset named 'chain_sums'. Did you mean 'chain_sum'"),
        ("chain_sum:max_term=3", "chain_sum has no option 'max_term'. Did you mean 'max_terms'"),
        ("chain_sum:max_terms=1", "reasoning-gym refuses 'reasoning-gym:chain_sum:max_terms=1'"),
        ("chain_sum:size=0", "size=0 must be a whole number"),
        ("composite", "no reasoning-gym dataset named 'composite'"),
    ],
)
def test_what_reasoning_gym_cannot_make_is_said_at_once(spec, told):
    with pytest.raises(TaskError) as caught:
        load_task(f"reasoning-gym:{spec}")
    assert told in str(caught.value)


@needs_reasoning_gym
def test_the_global_generator_of_numpy_is_left_alone():
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    load_task("reasoning-gym:pool_matrix").sample(3, "train", rng())
    assert np.random.random() == expected


def test_a_missing_reasoning_gym_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '.*\[text\]'\n.*C compiler"):
        load_task("reasoning-gym:chain_sum")


@needs_reasoning_gym
def test_all_datasets_are_listed_when_asked():
    names = [info.name for info in list_tasks(all=True)]
    assert "reasoning-gym:chain_sum" in names and len(names) > 100


# -- levels ----------------------------------------------------------------------------------------------------------------


@needs_reasoning_gym
def test_levels_set_the_difficulty_and_the_dataset_is_the_category():
    tasks = [load_task(f"reasoning-gym:chain_sum:level={level}") for level in range(4)]
    assert all(load_task(task.name) == task for task in tasks)
    terms = []
    for level, task in enumerate(tasks):
        problems = task.sample(20, "train", rng())
        assert {(p.category, p.difficulty) for p in problems} == {("chain_sum", float(level))}
        assert task.score(problems, [p.answer for p in problems]).correct == [True] * 20
        terms.append({p.info["entry"]["metadata"]["num_terms"] for p in problems})
    assert terms == [{2}, {2, 3}, {3, 4}, {4, 5}]
    assert {
        p.difficulty for p in load_task("reasoning-gym:chain_sum:level=2,min_terms=2,max_terms=2").sample(3, "test", rng())
    } == {2}
    assert tasks[0].gives() >= {"answers", "solutions", "categories", "levels", "variants"}


@needs_reasoning_gym
def test_a_task_without_a_level_counts_as_the_lowest_that_holds_it():
    task = load_task("reasoning-gym:chain_sum")  # up to 6 terms, level 4, of up to 4 digits, level 3
    problem = task.sample(1, "train", rng())[0]
    assert problem.difficulty == 4
    harder, easier, alike = task.harder(problem, rng()), task.easier(problem, rng()), task.alike(problem, rng())
    assert [each.difficulty for each in (harder, easier, alike) if each] == [5, 3, 4]
    for each in (harder, easier, alike):
        assert each is not None and task.score([each], [each.answer]).correct == [True] and each.prompt != problem.prompt
    assert task.harder(problem, rng()) == harder


@needs_reasoning_gym
def test_levels_end_and_some_datasets_have_none():
    lowest = load_task("reasoning-gym:chain_sum:level=0")
    assert lowest.easier(lowest.sample(1, "train", rng())[0], rng()) is None
    highest = load_task("reasoning-gym:spell_backward:level=4")
    assert highest.harder(highest.sample(1, "train", rng())[0], rng()) is None
    none = load_task("reasoning-gym:acre:size=5")
    assert not none.gives() & {"levels", "variants"} and none.harder(none.sample(1, "train", rng())[0], rng()) is None
    for spec, told in (
        ("chain_sum:level=11", r"chain_sum: level=11 must be a whole number from 0 to 10"),
        ("chain_sum:level=high", "level='high' must be a whole number"),
        ("acre:level=1", "acre has no levels in reasoning-gym, and level=1 was given"),
        ("knight_swap:level=1", "knight_swap has no levels"),
    ):
        with pytest.raises(TaskError, match=told):
            load_task(f"reasoning-gym:{spec}")
