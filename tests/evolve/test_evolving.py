"""Evolving: which problems have variants made of them, which variants are dropped, and what they say of themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from upslope.errors import MethodError
from upslope.evolve.evolving import ANCESTORS, Evolve, descended
from upslope.evolve.pool import ProblemPool
from upslope.tasks import load_task
from upslope.tasks.text import Problem
from upslope.types import Trajectories, View

TASK = load_task("reverse:length=3,hardest=5")
PROBLEMS = TASK.sample(8, "train", np.random.default_rng(0))


class Context:
    """A task, random numbers, and no prompt of this many characters or more."""

    def __init__(self, task=TASK, longest: int = 99, seed: int = 0):
        self.task, self.longest, self.seed = task, longest, seed

    def problems(self, rows):
        return [next(problem for problem in PROBLEMS if problem.id == task) for task in rows.task.tolist()]

    def fits(self, prompts):
        return [len(prompt) < self.longest for prompt in prompts]

    def rng(self):
        return np.random.default_rng(self.seed)


def step(*groups: list[float], pool: ProblemPool | None = None) -> Trajectories:
    """A step of groups of these rewards, one to a problem."""
    paid = torch.tensor([reward for group in groups for reward in group])
    numbers = [number for number, group in enumerate(groups) for _ in group]
    on = torch.ones(len(paid), 1)
    tasks = torch.tensor([PROBLEMS[number].id for number in numbers])
    return Trajectories(on, paid, torch.tensor(numbers), tasks, View(-on), memory={"pool": pool or ProblemPool()})


def parents(rows: Trajectories) -> list[str]:
    return list(dict.fromkeys(problem.info["made_from"][0] for problem in rows.made))


def test_variants_are_made_of_what_can_be_learned_from():
    """Of four problems one is half right: it is picked before those that all or no answers solve, and alone."""
    rows = Evolve(picked=0.5)(step([0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]), Context())
    assert parents(rows) == [PROBLEMS[2].prompt]
    harder = [problem for problem in rows.made if problem.info["made_by"] == "harder"]
    alike = [problem for problem in rows.made if problem.info["made_by"] == "alike"]
    assert len(harder) == len(alike) == 2 and {problem.difficulty for problem in harder} == {4}
    assert {problem.difficulty for problem in alike} == {3} and all(problem.info["generation"] == 1 for problem in rows.made)
    assert all(TASK.score([problem], [problem.answer]).correct == [True] for problem in rows.made)
    assert Evolve().metrics(rows) == {"made": 4.0, "made_dropped": 0.0, "made_generation": 1.0}


@pytest.mark.parametrize("groups", [[[1.0, 0.0]] * 4, [[0.0, 0.0]] * 4])
def test_constant_information_is_uniform(groups):
    """All alike, or nothing to learn from any: each of four is picked in about a quarter of the steps."""
    found = [parents(Evolve(picked=0.25, variants=1)(step(*groups), Context(seed=seed)))[0] for seed in range(200)]
    assert all(abs(found.count(problem.prompt) / 200 - 0.25) < 0.09 for problem in PROBLEMS[:4])


def test_it_picks_by_information_or_uniformly():
    """Information 3/4 and 1/4: the first is picked three times as often, or as often."""
    rows = step([1.0, 0, 0, 0], [1.0, 1, 1, 0])
    for pick, share in (("informative", 0.75), ("uniform", 0.5)):
        evolve = Evolve(picked=0.5, variants=1, pick=pick)
        found = [parents(evolve(rows, Context(seed=seed)))[0] for seed in range(200)]
        assert abs(found.count(PROBLEMS[0].prompt) / 200 - share) < 0.09


def test_what_cannot_be_used_is_dropped_and_counted():
    rows, each = step([1.0, 0.0]), Evolve(picked=1.0, variants=4)
    assert len(each(rows, Context()).made) == 4
    long = each(rows, Context(longest=len(PROBLEMS[0].prompt) + 1))
    assert {problem.info["made_by"] for problem in long.made} == {"alike"} and each.metrics(long)["made_dropped"] == 2
    hardest = each(rows, Context(load_task("reverse:length=3,hardest=3")))
    assert {problem.info["made_by"] for problem in hardest.made} == {"alike"} and each.metrics(hardest)["made_dropped"] == 2

    class Repeats(Context):
        task = type(
            "Stuck", (), {"harder": lambda self, problem, rng: PROBLEMS[0], "alike": lambda self, problem, rng: PROBLEMS[5]}
        )()

        def __init__(self):
            self.longest, self.seed = 99, 0

    stuck = each(rows, Repeats())
    assert [problem.prompt for problem in stuck.made] == [PROBLEMS[5].prompt], "none of the step's own, and each once"
    assert each.metrics(stuck)["made_dropped"] == 3


def test_a_problem_itself_may_be_kept():
    rows = Evolve(picked=1.0, variants=3, operators=("same",))(step([1.0, 0.0]), Context())
    assert rows.made == [PROBLEMS[0]]
    pool = ProblemPool()
    state = pool.update(pool.init(), rows, {})
    assert pool.recall(state, torch.tensor([PROBLEMS[0].id])).tolist() == [0.5]


def test_ancestors_are_remembered_up_to_a_number():
    found = Problem("0")
    for number in range(1, ANCESTORS + 4):
        found = descended(Problem(str(number)), found, "harder")
    assert found.info["generation"] == ANCESTORS + 3 and len(found.info["made_from"]) == ANCESTORS
    assert found.info["made_from"][0] == str(ANCESTORS + 2)


def test_rows_stay_as_they_are_and_the_same_step_makes_the_same():
    rows = step([1.0, 0.0], [1.0, 0.0])
    one, two = (Evolve(picked=1.0)(rows, Context(seed=3)) for _ in range(2))
    assert one.made == two.made and torch.equal(one.reward, rows.reward) and one.rows == rows.rows
    assert one.made != Evolve(picked=1.0)(rows, Context(seed=4)).made
    assert one.take_rows(torch.tensor([0])).made == one.made, "not cut with the rows"


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(MethodError, match="harder"):
        Evolve(operators=("hader",))
    with pytest.raises(MethodError, match="at least one"):
        Evolve(operators=())
    with pytest.raises(MethodError, match="ProblemPool"):
        Evolve()(dataclasses.replace(step([1.0, 0.0]), memory={}), Context())
