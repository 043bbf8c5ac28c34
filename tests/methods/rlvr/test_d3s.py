"""D3S: the choice of rows is the best there is, the choice of tokens follows, and both relax over the run."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from batches import assert_same, gradient, random_batch

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.controller.schedule import DownSampling
from upslope.objective.estimator import annotate, kept
from upslope.objective.filter.variance import MaxVariance, row_advantage, widest
from upslope.objective.weight.downsample import TopAdvantageEntropy
from upslope.runtime.seeding import generator
from upslope.types import Batch

d3s, grpo = find("d3s"), find("grpo")


def selected(value: list[float], keep: float, sets: list[int] | None = None) -> list[bool]:
    column = torch.tensor(value, dtype=torch.float64)
    lots = torch.linspace(0, 1, len(value), dtype=torch.float64)
    return widest(column, torch.tensor(sets or [0] * len(value)), lots, keep).tolist()


@pytest.mark.checks("identity", "d3s")
def test_keeping_everything_it_is_grpo(ragged_batch: Batch):
    everything = d3s.with_knobs({"filter.keep": 1.0, "weight.fraction": 1.0})
    assert_same(gradient(everything, ragged_batch), gradient(grpo, ragged_batch), exact=True)
    assert d3s.with_knobs(d3s.controller[0].knobs({}, 1.0)) == everything


@pytest.mark.checks("oracle", "d3s", by="exhaustive search")
@pytest.mark.parametrize("seed", range(12))
def test_the_scan_finds_the_widest_set(seed: int):
    random = generator(seed, "values")
    size = int(torch.randint(2, 11, (1,), generator=random))
    value = torch.randn(size, generator=random, dtype=torch.float64)
    if seed % 3 == 0:
        value = value.round()  # with ties
    for wanted in range(1, size + 1):
        chosen = widest(value, torch.zeros(size, dtype=torch.long), torch.rand(size, generator=random), wanted / size)
        assert chosen.sum() == wanted
        best = max(float(value[list(subset)].var(correction=0)) for subset in combinations(range(size), wanted))
        assert float(value[chosen].var(correction=0)) == pytest.approx(best, abs=1e-9)


@pytest.mark.checks("oracle", "d3s", by="hand-worked numbers")
def test_the_choice_by_hand():
    # Of -2, 0, 0.1, 1, 3 two: -2 and 3, of variance 6.25.
    assert selected([0.1, 3.0, 0.0, -2.0, 1.0], 0.4) == [False, True, False, True, False]
    # {-2, 0, 3}: mean 1/3, variance 4.22; {-2, 1, 3}: mean 2/3, variance 4.22. {-2, 0.1, 3} is narrower than both.
    assert sum(selected([0.1, 3.0, 0.0, -2.0, 1.0], 0.6)) == 3
    # One success among eight: it and any one failure.
    assert sum(selected([1.0] + [0.0] * 7, 0.25)) == 2 and selected([1.0] + [0.0] * 7, 0.25)[0]
    # Two sets by themselves, a half of each, rounded up.
    assert selected([1, 2, 3, 9, 8, 0], 0.5, [0, 0, 0, 1, 1, 1]) == [True, False, True, True, False, True]


@pytest.mark.parametrize("seed", range(6))
def test_a_standardised_set_has_a_subset_of_variance_one_at_least(seed: int):
    value = torch.randn(9, generator=generator(seed, "lemma"), dtype=torch.float64)
    value = (value - value.mean()) / value.std(correction=0)
    for wanted in range(2, 10):
        chosen = widest(value, torch.zeros(9, dtype=torch.long), torch.linspace(0, 1, 9), wanted / 9)
        assert float(value[chosen].var(correction=0)) >= 1 - 1e-9


def test_rows_keep_the_advantages_of_their_full_groups():
    batch = random_batch(seed=2, groups=4, samples=8)
    seen = annotate(d3s, batch)
    rows = kept(d3s, seen, late=True)
    assert rows.sum() == 8 and bool(kept(d3s, batch, late=False).all())
    values = row_advantage(seen)
    assert values[rows].var() > values.var()
    by_group = MaxVariance(keep=0.25, over="group")(seen)
    assert [int(by_group[batch.group == name].sum()) for name in batch.group.unique()] == [2, 2, 2, 2]


def test_ties_are_broken_by_lot_and_not_by_order():
    batch = random_batch(seed=5, groups=2, samples=16, ragged=False)
    reward = (torch.arange(32) % 4 == 0).double()
    seen = annotate(d3s, batch.replace(reward=reward, components={"task": reward}))
    one, other = MaxVariance()(seen), MaxVariance()(seen.replace(draw=1))
    assert one.sum() == other.sum() == 8 and not torch.equal(one, other)
    order = torch.randperm(32, generator=generator(0, "order"))
    assert torch.equal(MaxVariance()(seen.take_rows(order)), one[order])


def test_rows_without_a_decision_are_not_chosen():
    batch = random_batch(seed=6, groups=2, samples=4, empty_rows=2)
    assert not MaxVariance(keep=0.5)(annotate(grpo, batch))[1:3].any()
    assert MaxVariance(keep=0.5)(annotate(grpo, batch)).sum() == 3


@pytest.mark.checks("oracle", "d3s", by="hand-worked numbers")
def test_tokens_by_advantage_times_entropy():
    batch = random_batch(seed=0, groups=1, samples=2, positions=3, ragged=False)
    batch = batch.replace(
        advantage=torch.tensor([[2.0, 2.0, 2.0], [-1.0, -1.0, -1.0]], dtype=torch.float64),
        proximal=batch.proximal.map(lambda _: torch.tensor([[0.1, 0.5, 0.2], [0.9, 0.3, 0.6]], dtype=torch.float64)),
    )
    # |A| H is 0.2, 1.0, 0.4 and 0.9, 0.3, 0.6.
    assert TopAdvantageEntropy(fraction=0.5)(batch).tolist() == [[0, 1, 0], [1, 0, 1]]
    assert TopAdvantageEntropy(fraction=0.2)(batch).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert TopAdvantageEntropy(fraction=1.0)(batch).all()


def test_the_schedule_is_linear_and_ends_where_it_says():
    part = DownSampling(rows_start=0.25, tokens_start=0.2)
    assert part.knobs({}, 0.0) == {"filter.keep": 0.25, "weight.fraction": 0.2}
    assert part.knobs({}, 0.5) == pytest.approx({"filter.keep": 0.625, "weight.fraction": 0.6})
    assert part.knobs({}, 1.0) == {"filter.keep": 1.0, "weight.fraction": 1.0}
    assert DownSampling(until=0.5).knobs({}, 0.5) == DownSampling(until=0.5).knobs({}, 0.9) == part.knobs({}, 1.0)
    assert d3s.with_knobs(part.knobs({}, 0.5)).filter[0].keep == 0.625


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxVariance(keep=0.0),
        lambda: MaxVariance(keep=1.5),
        lambda: TopAdvantageEntropy(fraction=0.0),
        lambda: DownSampling(rows_start=0.0),
        lambda: MaxVariance()(random_batch(seed=0)),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(MethodError):
        make()
