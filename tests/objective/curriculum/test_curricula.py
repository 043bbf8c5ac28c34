"""Curricula alone: what they take of an offer, by numbers that can be worked out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.curriculum import ByCategory, ByPosterior, ByPromptValue, Knapsack, Pools, PoolStage
from upslope.objective.curriculum.knapsack import knapsack, worth
from upslope.types import Offer

NAMES = {10: "math", 20: "code", 30: "logic"}


def offer(count: int, wanted: int, *, seed: int = 0, category: Tensor | None = None, **known) -> Offer:
    """Tasks 0, 1, 2 and so on; ``known`` is what memories or heads say of them, by name."""
    rest = {name: known.pop(name) for name in ("samples", "progress", "attempt", "max_tokens") if name in known}
    category = torch.full((count,), 10) if category is None else category
    uniform = torch.from_numpy(np.random.default_rng(seed).random(count))
    read = {name: torch.as_tensor(values) for name, values in known.items()}
    return Offer(torch.arange(count), category, torch.full((count,), torch.nan), uniform, wanted, seed=seed,
                 names={number: NAMES[number] for number in set(category.tolist())}, recall=read.__getitem__,
                 value=read.__getitem__, **rest)  # fmt: skip


# -- sec -------------------------------------------------------------------------------------------------------------------


def shares(part: ByCategory, gains: dict[int, float], draws: int = 300, each: int = 40) -> dict[int, float]:
    """How often a category was taken, over steps of 8 of ``each`` candidates of three categories."""
    category = torch.tensor([10, 20, 30] * each)
    gain = torch.tensor([gains[int(number)] for number in category])
    taken = [part(offer(3 * each, 8, seed=seed, category=category, category_gain=gain)).chosen for seed in range(draws)]
    found = category[torch.cat(taken)].tolist()
    return {number: found.count(number) / len(found) for number in NAMES}


@pytest.mark.checks("oracle", "sec", by="closed form")
def test_categories_come_as_often_as_the_softmax_says():
    gains = {10: 0.0, 20: 1.0, 30: 2.0}
    part = ByCategory(memory="category_gain", temperature=0.5)
    expected = torch.tensor([0.0, 2.0, 4.0]).softmax(0).tolist()
    # 2,400 draws: four standard errors of a share of 0.87 are 0.028.
    assert list(shares(part, gains).values()) == pytest.approx(expected, abs=0.03)


@pytest.mark.checks("identity", "sec")
def test_at_an_infinite_temperature_all_categories_come_alike():
    gains = {10: 0.0, 20: 50.0, 30: 2.0}
    part = ByCategory(memory="category_gain", temperature=math.inf)
    assert list(shares(part, gains).values()) == pytest.approx([1 / 3] * 3, abs=0.04)


def test_within_a_category_tasks_come_as_they_were_offered():
    category = torch.tensor([10, 20, 20, 10, 20, 10])
    order = ByCategory(memory="gain")(offer(6, 3, category=category, gain=torch.tensor([0.0, 90, 90, 0, 90, 0])))
    assert order.chosen.tolist() == [1, 2, 4] and order.why["weight"].tolist() == pytest.approx([1.0] * 3)


def test_a_category_with_too_few_tasks_gives_its_turn_to_the_others():
    category = torch.tensor([10, 20, 10, 10, 30])
    gain = torch.tensor([0.0, 9e3, 0.0, 0.0, 0.0])
    order = ByCategory(memory="gain")(offer(5, 4, category=category, gain=gain))
    assert len(order.chosen) == 4 and 1 in order.chosen.tolist(), "the category that teaches most first, then whatever there is"
    assert ByCategory(memory="gain")(offer(5, 9, category=category, gain=gain)).chosen.tolist() == [0, 1, 2, 3, 4]


# -- mopps -----------------------------------------------------------------------------------------------------------------


def pairs(successes: list[float], failures: list[float]) -> Tensor:
    return torch.tensor([successes, failures], dtype=torch.float64).T


def test_draws_are_those_of_the_posterior():
    known = pairs([3.0] * 4000, [1.5] * 4000)
    drawn = ByPosterior()(offer(4000, 4000, posterior=known)).why["drawn"]
    assert float(drawn.mean()) == pytest.approx(3 / 4.5, abs=0.013)  # four standard errors
    assert float(drawn.var()) == pytest.approx(3 * 1.5 / (4.5**2 * 5.5), rel=0.1)


@pytest.mark.checks("oracle", "mopps", by="posteriors that are nearly certain")
def test_the_nearest_to_the_target_are_taken():
    rates = torch.tensor([0.05, 0.45, 0.95, 0.6, 0.3, 0.52])
    known = torch.stack([rates, 1 - rates], 1) * 1e9
    assert ByPosterior()(offer(6, 3, posterior=known)).chosen.tolist() == [1, 3, 5]
    assert ByPosterior(target=0.0)(offer(6, 2, posterior=known)).chosen.tolist() == [0, 4]
    band = ByPosterior(mode="threshold")
    assert band(offer(6, 2, posterior=known)).chosen.tolist() == [1, 3], "of those in the band the first offered"
    assert band(offer(6, 5, posterior=known)).chosen.tolist() in ([0, 1, 3, 4, 5], [1, 2, 3, 4, 5]), "then the nearest to it"
    assert ByPosterior()(offer(2, 3, posterior=known[:2])).chosen.tolist() == [0, 1]


@pytest.mark.checks("oracle", "mopps", by="simulation of a U-shaped population")
@pytest.mark.parametrize("mode", ["topk", "threshold"])
def test_groups_with_both_outcomes_are_more_frequent_than_by_chance(mode):
    """Rates from Beta(0.2, 0.2), of 256 tasks seen a few times each: over 1.5 times as many mixed groups of 8 at equal rollouts."""
    from upslope.objective.memory import BetaPosterior

    for seed in range(3):
        random, memory, part = np.random.default_rng(seed), BetaPosterior(), ByPosterior(mode=mode)
        rate = random.beta(0.2, 0.2, 256)
        state, mixed, by_chance = memory.init(), [], []
        for step in range(60):
            candidates = random.permutation(256)
            made = offer(256, 16, seed=step, posterior=memory.recall(state, torch.from_numpy(candidates)))
            chosen = candidates[part(made).chosen.numpy()]
            for tasks, found in ((chosen, mixed), (candidates[:16], by_chance)):
                right = random.binomial(8, rate[tasks])
                found.append(((right > 0) & (right < 8)).mean())
                if found is mixed:
                    state = _told(memory, state, tasks, right)
        assert np.mean(mixed[20:]) > 1.5 * np.mean(by_chance[20:])


def _told(memory, state, tasks: np.ndarray, right: np.ndarray):
    from batches import random_batch

    reward = torch.tensor([[1.0] * k + [0.0] * (8 - k) for k in right.tolist()], dtype=torch.float64).flatten()
    batch = random_batch(seed=0, groups=len(tasks), samples=8).replace(reward=reward)
    return memory.update(state, batch.replace(task=torch.from_numpy(tasks).repeat_interleave(8)), {})


def test_what_gives_no_pairs_is_refused():
    with pytest.raises(MethodError, match="no pair for each task"):
        ByPosterior()(offer(4, 2, posterior=torch.rand(4)))
    with pytest.raises(MethodError, match=r"low=0\.7 to high=0\.3"):
        ByPosterior(low=0.7, high=0.3)


# -- pcl -------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "pcl", by="the largest p(1-p)")
@pytest.mark.parametrize("seed", range(3))
def test_a_value_that_knows_takes_the_largest_variance(seed):
    rate = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.98 + 0.01
    order = ByPromptValue()(offer(64, 16, prompt_value=rate.logit()))
    expected = sorted((rate * (1 - rate)).topk(16).indices.tolist())
    assert order.chosen.tolist() == expected
    torch.testing.assert_close(order.why["value"], rate[order.chosen])


# -- knapsack --------------------------------------------------------------------------------------------------------------


def value(sizes: list[int], rates: list[float]) -> float:
    return sum(worth(size, rate) for size, rate in zip(sizes, rates, strict=True))


@pytest.mark.checks("oracle", "knapsack", by="the paper's numbers")
def test_the_division_of_the_spec():
    rates = [0.05, 0.1, 0.3, 0.5, 0.8, 0.95]
    assert knapsack(rates, 48, 2, 32) == [6, 16, 10, 7, 7, 2]
    assert value([6, 16, 10, 7, 7, 2], rates) == pytest.approx(0.36935, abs=5e-6)
    assert value([8] * 6, rates) == pytest.approx(0.35129, abs=5e-6)


def by_dynamic_programming(rates: list[float], budget: int, low: int, high: int) -> float:
    """The largest total worth, over all divisions."""
    best = {0: 0.0}
    for rate in rates:
        grown: dict[int, float] = {}
        for (spent, total), size in itertools.product(best.items(), range(low, high + 1)):
            if spent + size <= budget:
                grown[spent + size] = max(grown.get(spent + size, -1.0), total + worth(size, rate))
        best = grown
    return best[budget]


@pytest.mark.checks("oracle", "knapsack", by="dynamic programming")
@pytest.mark.parametrize("seed", range(20))
def test_giving_each_answer_to_whom_it_is_worth_most_is_the_optimum(seed):
    random = np.random.default_rng(seed)
    count, low = int(random.integers(1, 6)), int(random.integers(1, 4))
    high = low + int(random.integers(0, 12))
    rates = random.uniform(0.01, 0.99, count).tolist()
    budget = int(random.integers(low * count, high * count + 1))
    found = knapsack(rates, budget, low, high)
    assert sum(found) == budget and min(found) >= low and max(found) <= high
    assert value(found, rates) == pytest.approx(by_dynamic_programming(rates, budget, low, high), abs=1e-12)


def test_what_is_known_of_a_task_decides_whether_it_takes_part():
    part, unknown = Knapsack(), math.nan
    assert part.divided([unknown] * 4, 32, 8) == [8] * 4, "nothing is known"
    assert part.divided([1.0, 1.0, unknown], 24, 8) == [8, 8, 8], "nobody fails and nobody is uncertain: evenly"
    assert part.divided([0.0, 1.0, 0.0, 1.0], 32, 8) == [14, 2, 14, 2], "what the solved leave goes to those that always failed"
    assert part.divided([0.5, 0.5], 16, 8) == [8, 8], "nobody else could take what is left over"
    # Twelve are left behind the minima; with p = 1/2 a tenth is left after 3.3 answers, so 3 are needed and 9 are given away.
    assert part.divided([0.5, 0.0], 16, 8) == [5, 11]
    # ln 0.1 / ln 0.9 = 21.9: it needs more than the 10 that are left.
    assert part.divided([0.1, 0.0, 1.0, unknown], 32, 8) == [20, 2, 2, 8]
    assert part.divided([0.5, 1.0, unknown], 24, 8) == [5, 2 + 4 + 1, 8 + 4], (
        "without failures to the others outside of the division"
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_budget_is_spent_exactly(seed):
    random = np.random.default_rng(seed)
    rates = random.choice([0.0, 1.0, math.nan, 0.125, 0.5, 0.875, 0.05], 24).tolist()
    for samples, wanted in ((2, 24), (8, 24), (8, 30)):
        found = Knapsack().divided(rates, wanted * samples, samples)
        assert sum(found) == wanted * samples and min(found) >= 2


def test_an_order_has_all_tasks_and_the_sizes():
    order = Knapsack()(offer(4, 4, samples=8, rate=[0.0, 1.0, math.nan, 0.1]))
    assert order.chosen.tolist() == [0, 1, 2, 3] and order.samples.tolist() == [2, 2, 8, 20]
    assert order.metrics == {"unseen": 0.25}
    few = Knapsack()(offer(2, 4, samples=8, rate=[math.nan, math.nan]))
    assert few.samples.tolist() == [16, 16], "the budget is the step's, however few tasks there are"


def test_a_budget_below_the_minima_is_refused():
    Knapsack().check_sizes(16, 2)
    with pytest.raises(MethodError, match=r"at least 2 answers, 32 in all.*16 x 1 = 16.*--samples-per-task 2"):
        Knapsack().check_sizes(16, 1)
    with pytest.raises(MethodError, match=r"high=8.*curriculum\.high=9"):
        Knapsack(high=8).check_sizes(4, 9)


# -- acereason -------------------------------------------------------------------------------------------------------------

MIXED = torch.tensor([10, 20, 10, 20, 10, 20])
STAGED = Pools(
    stages=(PoolStage(until=0.5, category="math", limit=16), PoolStage(until=1.0, category="code", limit=64, below=0.5)),
)


@pytest.mark.checks("oracle", "acereason", by="hand-worked numbers")
def test_stages_follow_the_progress_of_the_run():
    rate = [math.nan, 0.9, 0.1, 0.5, 0.2, math.nan]
    for progress, chosen, limit, stage in (
        (0.0, [0, 2], 16, 1),
        (0.49, [0, 2], 16, 1),
        (0.5, [3, 5], 64, 2),
        (0.99, [3, 5], 64, 2),
    ):
        order = STAGED(offer(6, 2, category=MIXED, progress=progress, rate=rate))
        assert (order.chosen.tolist(), order.limit, order.metrics["stage"]) == (chosen, limit, stage)
        assert order.metrics["outside_stage"] == 0


def test_what_a_stage_lacks_is_taken_from_its_category_first():
    order = STAGED(offer(6, 4, category=MIXED, progress=0.7, rate=[math.nan, 0.9, 0.1, 0.5, 0.2, math.nan]))
    assert order.chosen.tolist() == [0, 1, 3, 5] and order.metrics["outside_stage"] == 0.5


def test_categories_that_nobody_has_are_refused_before_the_first_rollout():
    with pytest.raises(MethodError, match=r"stage 2 .* 'code', and of 4 drawn none is; they are of 'math'"):
        STAGED(offer(4, 2, rate=[0.0] * 4))
    STAGED(offer(4, 2, rate=[0.0] * 4, progress=0.7))
    STAGED(offer(4, 2, rate=[0.0] * 4, attempt=1))


@pytest.mark.parametrize("ends", [(), (0.5,), (0.5, 0.5, 1.0), (0.7, 0.4, 1.0)])
def test_stages_that_do_not_follow_one_another_are_refused(ends):
    with pytest.raises(MethodError, match="the last at 1"):
        Pools(stages=tuple(PoolStage(until=end) for end in ends))
