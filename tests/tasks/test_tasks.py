"""Tasks by name: what is wrong in one is said, and listing them loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.rewards import load_reward
from upslope.tasks import list_tasks, load_task
from upslope.tasks.embedded import FAMILY


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("revers", f"no task named 'revers'. Did you mean 'reverse'? 'upslope tasks' lists all {len(list_tasks())}."),
        ("sort:lenght=6", "sort has no knob 'lenght'. Did you mean 'length'? Its knobs: length, hardest."),
        ("sort:length=six", "sort: length='six' must be a whole number from 2 to 64."),
        ("sort:length=0", "sort: length=0 must be a whole number from 2 to 64."),
        ("sort:length=true", "sort: length=True must be a whole number"),
        ("sort:length=", "'length=' in 'sort:length=' is not of the form knob=value."),
        ("sort:length=3,length=4", "'length' is given twice"),
        ("reasoning-gym", "lacks the name behind the colon"),
        ("no/such.jsonl", "no file"),
    ],
)
def test_what_is_wrong_in_a_name_is_said(spec, told):
    with pytest.raises(TaskError) as caught:
        load_task(spec)
    assert told in str(caught.value)


def test_data_for_a_task_that_takes_none_is_refused(tmp_path):
    with pytest.raises(TaskError, match="goes with a file of problems"):
        load_task("sort", test_data="test.jsonl")
    with pytest.raises(TaskError, match="pays its own reward"):
        load_task("gym:CartPole-v1", reward=load_reward("exact"))
    (tmp_path / "data.txt").write_text("{}")
    with pytest.raises(TaskError, match=r"is no kind of file that problems are read from: \.jsonl, "):
        load_task(str(tmp_path / "data.txt"))


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


def test_a_task_under_another_reward_ends_its_items_as_before():
    own = load_task("recommend")
    assert load_task("recommend", reward=load_reward("exact")).separator == own.separator != "\n"
