"""The task copy: heavy-tailed lengths, and nothing but the letters is right."""

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.tasks import load_task


def test_lengths_have_a_tail():
    task = load_task("copy:longest=40,tail=1.5")
    lengths = np.array([len(problem.answer) for problem in task.sample(4000, "train", np.random.default_rng(0))])
    assert lengths.min() == 2 and lengths.max() == 40 and task.max_tokens == 42
    assert np.median(lengths) <= 5 and np.mean(lengths > 20) == pytest.approx(0.11, abs=0.03)
    flat = load_task("copy:shortest=3,longest=6,tail=0").sample(4000, "train", np.random.default_rng(0))
    assert np.bincount([len(problem.answer) for problem in flat])[3:].tolist() == pytest.approx([1000] * 4, abs=150)


def test_only_the_letters_themselves_are_right():
    task = load_task("copy")
    problems = task.sample(50, "test", np.random.default_rng(1))
    assert all(problem.prompt == f"k{problem.answer}=" for problem in problems)
    assert task.score(problems, [problem.answer for problem in problems]).correct == [True] * 50
    assert not any(task.score(problems, [problem.answer + "a" for problem in problems]).correct)


def test_nonsense_is_refused():
    for spec in ("copy:shortest=9,longest=8", "copy:tail=-1", "copy:letters=1"):
        with pytest.raises(TaskError, match=r"copy"):
            load_task(spec)
