"""SEC: a bandit over categories; what it is without its choice, and what it does among levels of one task."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner, task_for, weights

from upslope.errors import MethodError
from upslope.methods import compose, find
from upslope.rollout.choosing import category_id
from upslope.tasks.text import Problem, Scores

sec, grpo = find("sec"), find("grpo")
EASY, HARD = category_id("easy"), category_id("hard")


@pytest.mark.checks("identity", "sec")
def test_with_one_candidate_for_each_problem_it_is_grpo():
    assert_same(gradient(sec, random_batch(seed=2)), gradient(grpo, random_batch(seed=2)), exact=True)
    ours, theirs = learner(sec.with_knobs({"curriculum.candidates": 1})), learner(grpo, task=task_for(sec))
    for step in (1, 2, 3):
        assert ours.step(step)["samples"] == theirs.step(step)["samples"]
    assert torch.equal(weights(ours), weights(theirs))


@pytest.mark.checks("oracle", "sec", by="enumeration of all outcomes")
@pytest.mark.parametrize("answers", [2, 3, 6])
def test_the_mean_absolute_advantage_is_twice_the_root_of_p_times_one_minus_p(answers):
    """Of a group with k of n right: population spread, by which GRPO's advantages are divided, and the mean over the group."""
    for right in range(1, answers):
        reward = torch.tensor([1.0] * right + [0.0] * (answers - right), dtype=torch.float64)
        rate = right / answers
        scaled = (reward - reward.mean()) / reward.std(correction=0)
        assert float(scaled.abs().mean()) == pytest.approx(2 * math.sqrt(rate * (1 - rate)))
        assert float((reward - reward.mean()).abs().mean()) == pytest.approx(2 * rate * (1 - rate))


class Two:
    """Problems of two categories. Easy ones are paid for their letters, hard ones earn nothing."""

    def __init__(self, task):
        self.name, self.max_tokens, self.separator = task.name, 5, task.separator

    def answer_class(self, problem, response):
        return response

    def sample(self, count, split, rng):
        letters = rng.integers(0, 26, (count, 5))
        texts = ["".join(chr(97 + letter) for letter in row) for row in letters]
        return [Problem(f"{text}=", "x", {"category": "easy" if place % 2 else "hard"}) for place, text in enumerate(texts)]

    def score(self, problems, responses):
        letters = [sum(map(str.isalpha, response)) / 5 for response in responses]
        reward = [paid * (problem.category == "easy") for paid, problem in zip(letters, problems, strict=True)]
        return Scores(reward, [value == 1 for value in reward])


def on_two(method):
    made = learner(method, dataclasses.replace(SIZES, tasks_per_step=8))
    made.rollout.task = Two(made.rollout.task)
    return made


def test_what_teaches_comes_more_often_and_what_never_does_less():
    made = on_two(sec.with_knobs({"curriculum.temperature": 0.1}))
    told = [made.step(step) for step in range(1, 9)]
    shares = [step["share_easy"] for step in told]
    assert all(step["share_easy"] + step["share_hard"] == 1 for step in told)
    assert min(shares[2:]) > 0.9, "hard problems have no advantage, so that nearly all are easy once that is known"
    known = dict(zip(made.states["memory.category"]["task"].tolist(), made.states["memory.category"]["gain"].tolist(), strict=True))
    assert known[HARD] < 0.1 < known[EASY]
    assert told[-1]["chosen_weight"] > 0.9 and made.last.info[0]["chosen"].keys() == {"answers", "category", "weight", "gain"}


def test_filtered_groups_taught_nothing():
    made = on_two(compose(["dapo", "sec"]))
    made.step(1)
    known = dict(zip(made.states["memory.category"]["task"].tolist(), made.states["memory.category"]["gain"].tolist(), strict=True))
    assert known[HARD] == 0 < known[EASY], "dapo drops the groups of hard problems, and asks for others in their place"


@pytest.mark.parametrize("names", ["dhpo+sec", "gspo+mopps", "hpt+sec", "ttrl+knapsack", "dapo+pcl", "dr-grpo+acereason"])
def test_it_composes(names: str):
    method = compose(names.split("+"), {"aggregate": "acereason"} if "acereason" in names else {})
    assert method.curriculum == find(names.split("+")[1]).curriculum
    made = learner(method)
    told = [made.step(step) for step in (1, 2)]
    assert all(step["samples"] >= 16 for step in told)
    assert any(name.startswith(("chosen_", "share_", "stage", "unseen")) for name in told[-1])


def test_two_curricula_collide_and_the_error_says_how_to_choose():
    with pytest.raises(MethodError) as found:
        compose(["sec", "mopps"])
    for part in ("curriculum", "ByCategory", "ByPosterior", "--take curriculum=sec", "--take curriculum=mopps"):
        assert part in str(found.value)
    assert compose(["sec", "mopps"], {"curriculum": "mopps"}).curriculum == find("mopps").curriculum
