"""Knapsack RL: groups of different sizes under one budget."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError
from upslope.methods import find
from upslope.tasks.text import Scores

knapsack, grpo = find("knapsack"), find("grpo")


@pytest.mark.checks("identity", "knapsack")
def test_with_equal_groups_it_is_grpo():
    assert_same(gradient(knapsack, random_batch(seed=2)), gradient(grpo, random_batch(seed=2)), exact=True)
    equal = {f"curriculum.{name}": 4 for name in ("low", "high", "failed", "solved")}
    ours, theirs = learner(knapsack.with_knobs(equal)), learner(grpo)
    for step in (1, 2, 3):
        ours.step(step)
        theirs.step(step)
    assert torch.equal(weights(ours), weights(theirs))


def paid(all_problems, problems, responses):
    """Nothing, full marks, or the letters of an answer times a factor of the problem."""
    factors = [0.0, 0.0, 9.0, 9.0, 0.2, 0.4, 0.6, 0.8]
    letters = [sum(map(str.isalpha, response)) / 5 for response in responses]
    number = {problem.prompt: place for place, problem in enumerate(all_problems)}
    reward = [factors[number[problem.prompt]] * (share + (factors[number[problem.prompt]] > 1)) for problem, share in
              zip(problems, letters, strict=True)]  # fmt: skip
    return Scores(reward, [value >= 1 for value in reward])


@pytest.mark.checks("oracle", "knapsack", by="the division of the memory's rates")
def test_a_run_divides_its_answers_by_what_it_remembers():
    """A task of eight problems, so that all come back: two always fail, two never do, four differ. Every step spends the same."""
    made = learner(knapsack, dataclasses.replace(SIZES, tasks_per_step=8, samples_per_task=6))
    problems = made.rollout.task.sample(8, "train", np.random.default_rng(0))
    made.rollout.task.sample, made.rollout.task.score = lambda *_: problems, partial(paid, problems)
    for step in (1, 2, 3, 4):
        known = dict(zip(*(made.states["memory.rate"][name].tolist() for name in ("task", "rate")), strict=True))
        told = made.step(step)
        sizes = made.last.group.bincount().tolist()
        rates = [known.get(problem.id, float("nan")) for problem in problems]
        assert sizes == made.method.curriculum.divided(rates, 48, 6) and told["samples"] == 48
        assert (told["fewest_answers"], told["most_answers"]) == (min(sizes), max(sizes))
        assert told["unseen"] == (1.0 if step == 1 else 0.0)
    assert len(set(sizes)) > 1, "by now the problems differ"
    assert {note["chosen"]["answers"] for note in made.last.info} == set(sizes)


def test_a_budget_below_the_minima_is_refused_before_the_first_rollout():
    with pytest.raises(MethodError, match=r"4 x 4 = 16\. Give --samples-per-task 5"):
        learner(knapsack.with_knobs({"curriculum.low": 5}))
