"""Milestones: a program that submits earns its score, another how far it came; what it prints itself is nobody's milestone."""

from __future__ import annotations

import pytest
from hostile_programs import needs_sandbox

from upslope.rewards import RewardError, load_reward
from upslope.rewards.milestones import Milestones, instrumented, milestones_of

ROW = {"milestones": ["rows", "model", "submission"], "tests": ["assert submission(2) == 4", "assert submission(3) == 6"]}
LOADS = "rows = [1, 2]\n"
FITS = LOADS + "def fit():\n    model = 2\n    return model\n"


def earned(program: str, text: str = "milestones:seconds=5") -> tuple[float, float]:
    found = load_reward(text)([""], [program], [""], [ROW])
    return found["reward"][0], found["correct"][0]


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "reward"),
    [
        (FITS + "factor = fit()\nsubmission = lambda x: factor * x", 1.0),
        (FITS + "fit()\nsubmission = lambda x: 4", 0.5),
        ("submission = None", 0.0),
        (FITS + "fit()\n1 / 0\nsubmission = lambda x: 2 * x", -9.8),
        (FITS + "submission = lambda x: 2 * x\nraise SystemExit(1)", -9.8),
        (FITS, -9.9),
        (LOADS + "rows = rows + [3]", -9.9),
        (LOADS + "while True: pass\nmodel = 1", -9.9),
        ("", -10.0),
        ("this is no program", -10.0),
        ("print('reached 0'); print('milestone rows'); print('rows', 'model', 'submission')", -10.0),
        ("import sys\nsys.stdout.write('rows reached 0\\n' * 3)", -10.0),
    ],
)
def test_a_submission_earns_its_score_and_anything_else_how_far_it_came(program, reward):
    paid, correct = earned(program, "milestones:seconds=2")
    assert paid == pytest.approx(reward) and correct == float(reward == 1)


@needs_sandbox
def test_base_and_milestone_are_options():
    assert earned(LOADS, "milestones:base=-1,each=0.25")[0] == pytest.approx(-0.75)
    assert load_reward("milestones") == Milestones(base=-10.0, each=0.1)


def test_the_same_program_is_instrumented_the_same_and_does_the_same():
    text = "import os as rows\nfor model in (1, 2):\n    if model:\n        submission: int = model\nrows: int\n"
    made = instrumented(text, ROW["milestones"], "told")
    assert made == instrumented(text, ROW["milestones"], "told")
    assert made.splitlines()[:2] == ["import os as rows", "told(0)"] and made.count("told(2)") == 1 and "told(1)" not in made
    seen: list[int] = []
    exec(made, names := {"told": seen.append})
    assert seen == [0, 2, 2] and names["submission"] == 2


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({}, 'no "milestones": a list of names'),
        ({"milestones": "rows"}, "but is 'rows'"),
        ({"milestones": ["a b"]}, "but is"),
        ({"milestones": ["a", "a"]}, "twice"),
    ],
)
def test_rows_without_milestones_are_refused(info, told):
    with pytest.raises(RewardError, match=told):
        milestones_of(info)
    assert told in Milestones().check_row(info | {"tests": "assert 1"})


def test_tests_of_a_submission_are_asserts():
    assert "must be Python asserts" in Milestones().check_row({"milestones": ["a"], "tests": [{"stdin": "", "stdout": ""}]})
