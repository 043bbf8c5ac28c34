"""The pool: what a problem's priority is, which problems go and which a step takes, and that all of it survives a stop."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import upslope as up
from upslope.errors import MethodError, Remark
from upslope.evolve.evolving import descended
from upslope.evolve.pool import FromPool, ProblemPool, can_be_kept, informativeness, problem_of, race, text_of
from upslope.learners.curricula import Ordering
from upslope.rollout.choosing import Candidate, beside, category_numbers, offered, others
from upslope.runtime.files import load_state, save_state
from upslope.tasks.text import Problem
from upslope.types import Offer, Trajectories, View


def answered(rewards: dict[str, list[float]], made=()) -> Trajectories:
    """Rows of a step: by prompt, what its answers earned."""
    tasks = [Problem(prompt).id for prompt, own in rewards.items() for _ in own]
    paid = torch.tensor([reward for own in rewards.values() for reward in own])
    on = torch.ones(len(tasks), 1)
    numbers = [number for number, own in enumerate(rewards.values()) for _ in own]
    return Trajectories(
        on, paid - 0.5, torch.tensor(numbers), torch.tensor(tasks), View(-on), components={"task": paid}, made=list(made)
    )


def child(prompt: str, parent: str, **info) -> Problem:
    return descended(Problem(prompt, prompt[::-1], info), Problem(parent), "harder")


def priorities(pool: ProblemPool, state, *prompts: str) -> list[float]:
    return pool.recall(state, torch.tensor([Problem(prompt).id for prompt in prompts])).tolist()


def info(*groups: list[float], signal="max-mean") -> list[float]:
    rewards = torch.tensor([reward for group in groups for reward in group])
    index = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    return informativeness(rewards, index, len(groups), signal).tolist()


# -- priorities ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", range(9))
def test_with_rewards_of_0_and_1_it_is_the_share_of_failures_unless_none_or_all_fail(right):
    found = info([1.0] * right + [0.0] * (8 - right))
    assert found == [1 - right / 8 if 0 < right < 8 else 0.0]


def test_the_signals_by_hand():
    """Rewards 0, 0.2 and 1: mean 0.4. Best less mean 0.6, best less worst 1, variance (0.16 + 0.04 + 0.36) / 3, and below the best
    of all groups, which is 2: 1.6. The other group earned 2 throughout."""
    groups = [0.0, 0.2, 1.0], [2.0, 2.0]
    assert info(*groups) == pytest.approx([0.6, 0.0]) and info(*groups, signal="max-min") == pytest.approx([1.0, 0.0])
    assert info(*groups, signal="variance") == pytest.approx([0.56 / 3, 0.0])
    assert info(*groups, signal="failure") == pytest.approx([1.6, 0.0])


def test_equal_rewards_say_nothing_to_the_last_bit():
    assert info([0.1] * 7) == [0.0] and info([0.7] * 3, signal="variance") == [0.0]


# -- what is kept --------------------------------------------------------------------------------------------------------------


def test_a_new_problem_has_its_parents_priority_until_it_is_answered():
    pool = ProblemPool()
    state = pool.update(pool.init(), answered({"a": [1.0, 0, 0, 0], "b": [1.0, 1, 1, 0]}, [child("aa", "a"), child("bb", "b")]), {})
    assert priorities(pool, state, "aa", "bb") == [0.75, 0.25] and np.isnan(priorities(pool, state, "a")[0])
    state = pool.update(state, answered({"aa": [1.0, 1, 0, 0]}, [child("aa", "a"), child("aaa", "aa")]), {})
    assert priorities(pool, state, "aa", "bb", "aaa") == [0.5, 0.25, 0.5] and len(state["text"]) == 3


def test_the_lowest_priority_goes_first_and_of_equal_ones_the_oldest():
    pool = ProblemPool(keep=3)
    state = pool.update(pool.init(), answered({"a": [1.0, 0]}, [child(name, "a") for name in ("p", "q")]), {})
    state = pool.update(state, answered({"b": [1.0, 0, 0, 0]}, [child(name, "b") for name in ("r", "s")]), {})
    assert [problem_of(text).prompt for text in state["text"]] == ["q", "r", "s"]
    state = pool.update(state, answered({"r": [1.0, 1.0], "c": [0.0, 1.0]}, [child("t", "c")]), {})
    assert [problem_of(text).prompt for text in state["text"]] == ["q", "s", "t"], "what was solved goes before what is younger"
    assert priorities(pool, state, "q", "s", "t") == [0.5, 0.75, 0.5]


def test_it_does_not_grow_however_much_is_made():
    pool, made = ProblemPool(keep=50), 0
    state = pool.init()
    for step in range(40):
        rows = answered({f"a{step}": [1.0, 0.0]}, [child(f"{step}/{number}", f"a{step}") for number in range(25)])
        state, made = pool.update(state, rows, {}), made + 25
    assert made == 1000 and {len(column) for column in state.values()} == {50}
    assert len(pool.problems(state)) == 50 and pool.problems(state).problem(49).prompt == "39/24"


def test_a_stopped_run_has_the_same_problems_again(tmp_path):
    pool = ProblemPool()
    told = {"entry": {"numbers": (1, 2), 3: [0.1, None, "ü\n"]}, "category": "sum", "difficulty": 2}
    talk = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})
    new = [child("aa", "a", **told), dataclasses.replace(child("ab", "a"), messages=talk, unread=frozenset({"hints", "category"}))]
    state = pool.update(pool.init(), answered({"a": [1.0, 0, 0]}, new), {})
    save_state(tmp_path, "learner", {"pool": state})
    again = load_state(tmp_path, "learner")["pool"]
    kept, before = pool.problems(again), pool.problems(state)
    for place, problem in enumerate(new):
        assert kept.problem(place) == before.problem(place) == problem and kept.problem(place).unread == problem.unread
        assert repr(kept.problem(place)) == repr(problem), "down to tuples and numbers as keys"
    assert torch.equal(again["priority"], state["priority"]) and torch.equal(again["task"], state["task"])
    more = answered({"aa": [0.0, 1.0]}, [child("ac", "aa")])
    one, two = pool.update(again, more, {}), pool.update(state, more, {})
    assert one["text"] == two["text"] and torch.equal(one["priority"], two["priority"]) and one["category"] == two["category"]
    assert json.dumps(one["category"]) == '["sum", "", ""]'


def test_what_is_no_plain_data_is_not_kept_and_the_user_is_told():
    assert can_be_kept(child("aa", "a", numbers=[1, 2]))
    with pytest.warns(Remark, match="not plain data"):
        assert not can_be_kept(child("aa", "a", array=np.zeros(2)))
    assert text_of(Problem("a")) == "('a', '', {}, [], [])"


def test_what_is_offered_of_a_pool_says_the_same_whoever_looks_it_up():
    pool, names = ProblemPool(), [f"c{number}" for number in range(40)]
    made = [child(name, "a", category=name[-1]) for name in names]
    state = pool.update(pool.init(), answered({"a": [1.0, 0, 0], "c7": [2.0, 0.0]}, made), {})
    own = [Candidate(Problem(name).id) for name in ("c7", "x", "c30")]
    left = others(pool.problems(state), {each.task for each in own})
    assert left is not None and len(left) == 38 and torch.equal(left.recalled, pool.recall(state, left.task))
    offer = beside(offered(own, torch.rand(3), 2, 4), left, torch.rand(38))
    assert torch.equal(offer.category[3:], category_numbers(left.category)) and left.problem(30).prompt == "c32"
    method = up.method("eva")
    ordering = Ordering(method, {"memory.pool": state}, 0.5)
    seen = torch.cat([pool.recall(state, offer.task[:3]), left.recalled])
    assert torch.equal(ordering._recalled(offer, "pool").nan_to_num(-1), seen.nan_to_num(-1)) and not seen[0].isnan()


def test_a_pool_of_an_earlier_version_has_only_the_names_of_its_categories():
    pool = ProblemPool(keep=3)
    state = pool.update(pool.init(), answered({"a": [1.0, 0, 0]}, [child(name, "a", category=name) for name in "pqr"]), {})
    old = {name: column for name, column in state.items() if name != "category_number"}
    assert torch.equal(pool.problems(old).category_number, state["category_number"])
    more = answered({"b": [1.0, 0, 0, 0]}, [child("s", "b", category="p")])
    assert torch.equal(pool.update(old, more, {})["category_number"], pool.update(state, more, {})["category_number"])
    assert pool.update(old, more, {})["category_number"].tolist() == category_numbers(["q", "r", "p"]).tolist()


# -- what a step takes ---------------------------------------------------------------------------------------------------------


def offer_of(own: int, kept: list[float], wanted: int, progress: float = 0.5, seed: int = 0) -> Offer:
    """An offer of own problems, and of kept ones with these priorities."""
    pool, rng = ProblemPool(), np.random.default_rng(seed)
    state = pool.init()
    if kept:
        state = pool.update(
            state,
            answered({f"k{n}": [2.0, 0.0] for n in range(len(kept))}, [child(f"c{n}", f"k{n}") for n in range(len(kept))]),
            {},
        )
        state["priority"] = torch.tensor(kept, dtype=torch.float64)
    offer = offered([Candidate(Problem(f"o{n}").id) for n in range(own)], torch.from_numpy(rng.random(own)), wanted, 4)
    if kept:
        offer = beside(offer, pool.problems(state), torch.from_numpy(rng.random(len(kept))))
    return dataclasses.replace(offer, progress=progress, recall=lambda name: pool.recall(state, offer.task))


def test_a_share_comes_from_the_pool_and_the_rest_are_the_tasks_own_in_order():
    order = FromPool(share=0.75)(offer_of(8, [0.5] * 20, 8))
    chosen = order.chosen.tolist()
    assert chosen[:2] == [0, 1] and len(chosen) == 8 and all(place >= 8 for place in chosen[2:]) and len(set(chosen)) == 8
    assert order.why["from_pool"].tolist() == [0, 0, *[1] * 6] and order.metrics == {"pool_size": 20.0, "pool_priority": 0.5}
    assert order.why["priority"][:2].isnan().all() and (order.why["priority"][2:] == 0.5).all()


@pytest.mark.parametrize(("kept", "wanted", "progress"), [([], 8, 0.5), ([0.5] * 20, 8, 0.1), ([0.5] * 3, 8, 0.5)])
def test_where_the_pool_has_fewer_the_task_gives_more(kept, wanted, progress):
    order = FromPool(share=0.75, warm=0.2)(offer_of(8, kept, wanted, progress))
    taken = len(kept) if progress >= 0.2 else 0
    assert order.chosen.tolist()[: 8 - taken] == list(range(8 - taken)) and int(order.why["from_pool"].sum()) == taken


def test_where_the_task_repeats_itself_the_pool_gives_more():
    order = FromPool(share=0.5)(offer_of(2, [0.1] * 9, 8))
    assert order.chosen.tolist()[:2] == [0, 1] and len(order.chosen) == 8


def test_it_draws_by_priority_and_without_any_uniformly():
    """One of two from the pool: of weights 3 and 1 the first in three of four draws; of weights 0 in half of them."""

    def first(priorities: list[float], draw: str = "priority") -> float:
        offer, draws = offer_of(1, priorities, 1), torch.from_numpy(np.random.default_rng(1).random((500, 3)))
        return np.mean(
            [FromPool(share=1.0, draw=draw)(dataclasses.replace(offer, uniform=luck)).chosen.item() == 1 for luck in draws]
        )

    assert first([3.0, 1.0]) == pytest.approx(0.75, abs=0.05) and first([0.0, 0.0]) == pytest.approx(0.5, abs=0.05)
    assert first([0.2, 0.0]) == 1.0 and first([3.0, 1.0], "uniform") == pytest.approx(0.5, abs=0.05)


def test_a_race_puts_the_worthless_last():
    uniform = torch.tensor([0.9, 0.1, 0.5, 0.0], dtype=torch.float64)
    assert race(torch.tensor([0.0, 0.0, 1.0, 0.0]), uniform).tolist() == [2, 3, 1, 0]


@pytest.mark.parametrize("count", [0, 1, 3, 20, 39, 40, 41])
def test_the_first_of_a_race_are_those_of_the_whole_race(count: int):
    uniform = torch.rand(40, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    weight = torch.arange(40.0) % 4 * (torch.arange(40) < 24)  # 18 are worth something
    uniform[5] = uniform[6] = uniform[30]
    assert race(weight, uniform, count).tolist() == race(weight, uniform)[:count].tolist()


def test_knobs_out_of_range_are_refused():
    from upslope.methods import find

    with pytest.raises(MethodError, match=r"memory.pool.keep"):
        find("eva").with_knobs({"memory.pool.keep": 0})
    with pytest.raises(MethodError, match=r"curriculum.share"):
        find("eva").with_knobs({"curriculum.share": 1.5})
