"""Rock, scissors, paper: preferences that go round, and a score from the policy's exact chances."""

from __future__ import annotations

import numpy as np
import pytest

import upslope as up
from upslope.errors import TaskError
from upslope.policies import load_language_model
from upslope.rewards.preferences import Contest, compared_by_task
from upslope.rollout.evaluation import answer_chances, evaluate_choices
from upslope.tasks import load_task
from upslope.tasks.rps import ANSWERS, PROMPT, RockScissorsPaper
from upslope.tasks.text import SPLITS, Problem, WithReward

TASK = RockScissorsPaper()
TINY = "tiny:layers=1,width=32"


def test_each_answer_beats_the_next():
    """The matrix of the papers, and anything else loses to all three: here what is not an answer, and is even with its like."""
    found = compared_by_task(TASK, Contest(Problem(PROMPT), (*ANSWERS, "x", "")))
    assert found[:3, :3] == pytest.approx(np.array([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]]))
    assert (found[:3, 3:] == 1).all() and (found[3:, 3:] == 0.5).all() and (found + found.T == 1).all()
    assert "comparisons" in TASK.gives() and "variants" not in TASK.gives() and TASK.harder(Problem(PROMPT), None) is None


def test_exploitability_by_hand():
    """Of (.8, .1, .1) paper is the best reply: .9 * .8 + .1 * .1 + .5 * .1 = 0.78. Uniform has none, one answer alone loses 0.9."""
    assert TASK.played(np.array([0.8, 0.1, 0.1])) == {"score": pytest.approx(0.22), "exploitability": pytest.approx(0.28)}
    assert TASK.played(np.full(3, 1 / 3))["exploitability"] == pytest.approx(0)
    for alone in np.eye(3):
        assert TASK.played(alone)["exploitability"] == pytest.approx(0.4)
    # Half of what is said is no answer and loses: 1/2 * 1/2 + 1/2 = 0.75.
    assert TASK.played(np.full(3, 1 / 6)) == {"score": pytest.approx(0.25), "exploitability": pytest.approx(0.25)}


@pytest.mark.parametrize("split", SPLITS)
def test_there_is_one_problem_and_answers_come_in_their_shares(split):
    problems = TASK.sample(64, split, np.random.default_rng(3))
    counts = [sum(problem.answer == answer for problem in problems) for answer in ANSWERS]
    assert {problem.prompt for problem in problems} == {PROMPT} and sum(counts) == 64
    assert 51 <= counts[0] <= 52 and min(counts[1:]) >= 6 and max(counts[1:]) <= 7
    assert load_task("rps:first=0.5,wins=0.7").name == "rps:wins=0.7,first=0.5"


def test_pairs_go_round_too():
    """Of many pairs nine in ten of each two answers have the one that beats the other as chosen."""
    counts = {}
    for problem in RockScissorsPaper(first=0.34).sample(3000, "train", np.random.default_rng(0)):
        (chosen,), (rejected,) = TASK.pair(problem)
        counts[chosen, rejected] = counts.get((chosen, rejected), 0) + 1
    for winner, loser in (("r", "s"), ("s", "p"), ("p", "r")):
        won, lost = counts[winner, loser], counts[loser, winner]
        assert won / (won + lost) == pytest.approx(0.9, abs=0.03) and won + lost > 900  # three standard errors
    assert "pairs" in TASK.gives()
    assert all(TASK.pair(problem) for problem in RockScissorsPaper(first=1.0).sample(9, "train", np.random.default_rng(0)))


@pytest.mark.parametrize("spec", ["rps:wins=0.4", "rps:first=2", "rps:wins=true", "rps:hardest=3"])
def test_knobs_out_of_range_are_refused(spec):
    with pytest.raises(TaskError, match=r"rps"):
        load_task(spec)


def test_the_chances_are_those_of_sampling():
    """Against the softmax of the model's own logits behind the prompt; with room for it, the stop token is part of an answer."""
    import torch

    policy = load_language_model(TINY, 0)
    problems = [Problem(PROMPT), Problem("other prompt=")]
    found = answer_chances(policy, problems, ANSWERS, max_tokens=1)
    for row, problem in zip(found, problems, strict=True):
        logits = policy.model(input_ids=torch.tensor([policy.encode(problem.prompt)])).logits[0, -1]
        ids = [policy.tokenizer(text, add_special_tokens=False).input_ids[0] for text in ANSWERS]
        assert row == pytest.approx(logits.softmax(0)[ids].detach().numpy(), rel=1e-5)
    ended = answer_chances(policy, problems, ANSWERS, max_tokens=3)
    assert (ended < found).all()
    hot = answer_chances(policy, problems, ANSWERS, max_tokens=1, temperature=1e6)
    assert hot == pytest.approx(np.full((2, 3), 1 / len(policy.tokenizer)), rel=1e-4)


def test_under_another_reward_the_score_is_the_same():
    policy = load_language_model(TINY, 0)
    own = evaluate_choices(TASK, policy, problems=5, max_tokens=1)
    other = evaluate_choices(WithReward(TASK, lambda p, r, a: [0.0] * len(r)), policy, problems=5, max_tokens=1)
    assert own == other and own["problems"] == 1 and own["low"] == own["high"] == own["score"]
    assert own["score"] + own["exploitability"] == pytest.approx(0.5)


@pytest.mark.slow
def test_a_run_begins_where_the_task_says_and_reports_exploitability(tmp_path):
    """A warm start ends within 0.02 of (.8, .1, .1), and its exploitability within 0.03 of 0.28."""
    wins = {"data": "Compared(pays=True)"}
    run = up.train("rloo", "rps", knobs=wins, steps=2, tasks_per_step=2, out=tmp_path / "run")
    first, last = run.evaluations[0], run.evaluations[-1]
    assert [first[f"chance_{answer}"] for answer in ANSWERS] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert sum(first[f"chance_{answer}"] for answer in ANSWERS) > 0.99
    assert first["exploitability"] == pytest.approx(0.28, abs=0.03) and first["score"] == 0.5 - first["exploitability"]
    assert run.summary["score"] == "win rate against the best reply" and last["step"] == 2
    assert run.metrics[0]["preference_gap"] >= 0
