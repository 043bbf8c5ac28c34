"""A text task of the user's own that raises, or returns what it should not, is told in a line with its file, class and row."""

from pathlib import Path

import numpy as np
import pytest

import upslope as up
from upslope.errors import TaskError
from upslope.tasks import Problem, load_task

GOOD = {
    "init": "pass",
    "sample": "return [Problem(f'l:{i}=', str(i)) for i in range(count)]",
    "score": "return Scores([1.0] * len(responses), [True] * len(responses))",
}
TASK = """
from upslope.tasks import Problem, Scores, TextTask

class Own(TextTask):
    name = "own"
    max_tokens = 3
    separator = ";"

    def __init__(self):
        {init}

    def sample(self, count, split, rng):
        {sample}

    def score(self, problems, responses):
        {score}

    def describe(self):
        return "Own."
"""


def own(folder: Path, **changed: str):
    (folder / "own.py").write_text(TASK.format(**{**GOOD, **changed}))
    return load_task(f"{folder / 'own.py'}:Own")


def test_a_good_one_is_used_as_it_is(tmp_path: Path):
    task = own(tmp_path)
    assert (task.name, task.max_tokens, task.separator, task.describe()) == ("own", 3, ";", "Own.")
    problems = task.sample(2, "train", np.random.default_rng(0))
    assert [problem.prompt for problem in problems] == ["l:0=", "l:1="] and task.score(problems, ["a", "b"]).correct == [True] * 2
    assert task.answer_class(problems[0], " a ") == "a"


@pytest.mark.parametrize(
    ("where", "does", "says"),
    [
        ("init", "raise KeyError('words')", "own.py:Own could not be made: KeyError: 'words'"),
        ("sample", "return 1 / 0", "own.py:Own.sample raised ZeroDivisionError: division by zero (line 13)."),
        ("sample", "return []", "own.py:Own.sample returned []; it must return a list of 2 Problem."),
        ("sample", "return ['a', 'b']", "returned ['a', 'b']; it must return a list of 2 Problem."),
        ("sample", "return None", "returned None"),
        ("score", "return [1.0, 1.0]", "own.py:Own.score returned [1.0, 1.0]; it must return Scores(reward, correct)."),
        ("score", "return Scores([1.0], [True])", "returned 1 rewards for 2 responses."),
        ("score", "return Scores([1.0, 1.0], [True])", "own.py:Own.score raised ValueError: 'correct' has 1 values for 2 rewards"),
        (
            "score",
            "return Scores([0.0, float('nan')], [True] * 2)",
            "reward nan, which is no finite number below 1e18, for 'b'",
        ),
        ("score", "return Scores([0.0, 1e39], [True] * 2)", "the reward 1e+39, which is no finite number below 1e18"),
        ("score", "return Scores([0.0, '1'], [True] * 2)", "the reward '1'"),
        ("score", "return Scores([0.0] * 2, [True] * 2, {'style': [0.0, None]})", "the style None"),
        ("score", "raise RuntimeError", "own.py:Own.score raised RuntimeError (line 16)."),
    ],
)
def test_a_faulty_one_is_told_in_a_line(where: str, does: str, says: str, tmp_path: Path):
    with pytest.raises(TaskError) as told:
        task = own(tmp_path, **{where: does})
        problems = task.sample(2, "train", np.random.default_rng(0)) if where != "score" else [Problem("p"), Problem("q")]
        task.score(problems, ["a", "b"])
    assert says in str(told.value) and "\n" not in str(told.value)


def test_one_that_lacks_a_method_is_told(tmp_path: Path):
    (tmp_path / "own.py").write_text("from upslope.tasks import TextTask\nclass Own(TextTask):\n    name, max_tokens = 'own', 3\n")
    with pytest.raises(TaskError, match=r"own\.py:Own could not be made: TypeError: Can't instantiate abstract class Own"):
        load_task(f"{tmp_path / 'own.py'}:Own")


def test_a_run_on_one_can_be_loaded_again(tmp_path: Path):
    own(tmp_path)
    run = up.train(
        "grpo", f"{tmp_path / 'own.py'}:Own", model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, samples_per_task=2,
        warm_start=0.0, eval_problems=2, out=tmp_path / "run",
    )  # fmt: skip
    assert up.load(run.path).policy is not None
