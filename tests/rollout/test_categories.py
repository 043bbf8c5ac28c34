"""Documents by category: every category has its share of a step, however rare its problems are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from rollout_calls import collect
from small_models import policy_of

from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.rollout.categories import FromCategories, mixed
from upslope.tasks.text import Problem
from upslope.types import Sampling


def problems(category: str, count: int) -> list[Problem]:
    return [Problem(f"{category}{i}", "x", {"documents": [f"{category} {i}"], "category": category}) for i in range(count)]


class Unequal:
    """Nine problems of one category to each one of the other, and some without documents."""

    name = "unequal"
    pool = (*problems("a", 18), *problems("b", 2), Problem("bare", "x", {"category": "c"}))

    def sample(self, count, split, rng):
        return [self.pool[i] for i in rng.integers(len(self.pool), size=count)]


def seen(plan: FromCategories, steps: int = 6, tasks: int = 8) -> Counter:
    rollout = plan.build(Unequal(), policy_of("llama"), tasks=tasks, samples=4, sampling=Sampling(max_tokens=8), seed=0)
    return Counter(note["response"][0] for step in range(1, steps + 1) for note in collect(rollout, step).info)


def test_without_weights_all_categories_are_seen_equally_often():
    assert seen(FromCategories()) == {"a": 24, "b": 24}


def test_weights_are_shares_of_a_step():
    assert seen(FromCategories(mixture="b=3")) == {"a": 12, "b": 36}
    assert seen(FromCategories(mixture=" b = 0 ")) == {"a": 48}
    assert seen(FromCategories(mixture="nobody's=9")) == {"a": 24, "b": 24}


def test_shares_that_are_no_whole_rows_are_rounded_by_chance():
    found, shares = {"a": problems("a", 2), "b": problems("b", 2)}, np.array([0.7, 0.3])
    drawn = [mixed(found, shares, 2, np.random.default_rng(seed)) for seed in range(400)]
    counts = [sum(each.category == "b" for each in some) for some in drawn]
    assert set(counts) == {0, 1} and 0.5 < np.mean(counts) < 0.7


def test_a_step_draws_the_same_again():
    def rows():
        plan = FromCategories().build(Unequal(), policy_of("llama"), tasks=5, samples=1, sampling=Sampling(max_tokens=8), seed=3)
        return [note["response"] for note in collect(plan, 4).info]

    assert rows() == rows()


@pytest.mark.parametrize("mixture", ["a", "=1", "a=x", "a=-1", "a=nan", "a=1,b"])
def test_what_is_no_mixture_is_refused(mixture):
    with pytest.raises(MethodError, match=r"gives no category a weight of 0 or more. Write it as in 'conditional=2,factual=0.5'"):
        FromCategories(mixture=mixture)


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(UserError, match="no category of unequal has a weight above 0; it has a, b"):
        seen(FromCategories(mixture="a=0,b=0"))


def test_it_can_be_set_by_its_path():
    method = find("cap-cpt").with_knobs({"stages.cpt.rollout.mixture": "a=1,b=2"})
    assert method.stages[0].rollout == FromCategories(mixture="a=1,b=2")
    assert FromCategories(mixture="a=1,b=2").weights() == {"a": 1.0, "b": 2.0}
