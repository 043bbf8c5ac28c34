"""BAPO's search for bounds, against the loop of the paper and that of the released code."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.aggregate import TokenMean
from upslope.objective.estimator import annotate, begin_update, early_columns
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.surrogate.balanced import BalancedClip
from upslope.types import Batch

bapo, grpo = find("bapo"), find("grpo")
RELEASED = BalancedClip(
    target=0.5, low_limit=0.8, low_step=0.05, high_limit=2.0, high_step=0.05, first="low", weighted=False
)  # fmt: skip


def found_bounds(part: BalancedClip, batch: Batch) -> tuple[float, float]:
    method = bapo.derive(surrogate=part)
    numbers = begin_update(method, annotate(method, batch)).prepared[part]
    assert numbers.shape == (batch.rows,) and len(numbers.unique()) == 1
    return part.bounds()[int(numbers[0])]


def columns(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Ratio, advantage and sampling probability of the sampled decisions."""
    on = batch.sampled > 0
    ratio = (batch.current.logp - batch.proximal.logp).exp().detach()
    return ratio[on], annotate(grpo, batch).advantage[on], batch.behavior.logp.exp()[on]


@pytest.mark.checks("identity", "bapo")
def test_without_a_target_it_is_the_clip_at_the_start_bounds(ragged_batch: Batch):
    off = bapo.derive(surrogate=BalancedClip(target=0.0))
    plain = grpo.derive(aggregate=TokenMean(), regularize=None, surrogate=PessimisticClip(low=0.4, high=0.2, dual=3.0))
    assert_same(gradient(off, ragged_batch), gradient(plain, ragged_batch), rtol=1e-12)
    assert not early_columns(off) and early_columns(bapo) == {"logp"}


@pytest.mark.checks("oracle", "bapo", by="the paper's loop, written out")
@pytest.mark.parametrize("target", [0.3, 0.45, 0.5, 0.55, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_those_of_the_papers_loop(seed: int, target: float):
    batch = random_batch(seed, groups=4, samples=4, drift=0.6)
    ratio, advantage, chance = columns(batch)

    def share(low: float, high: float) -> float:
        good = bad = 0.0
        for r, a, p in zip(ratio.tolist(), advantage.tolist(), chance.tolist(), strict=True):
            value = p * abs(min(r * a, min(max(r, low), high) * a))
            good, bad = (good + value, bad) if a > 0 else (good, bad + value)
        return good / (good + bad)

    low, high = 0.6, 1.2
    while share(low, high) < target:
        if high + 0.05 <= 3.0 + 1e-9:
            high += 0.05
        elif low + 0.02 <= 0.9 + 1e-9:
            low += 0.02
        else:
            break
    assert found_bounds(BalancedClip(target=target), batch) == pytest.approx((low, high))


@pytest.mark.checks("oracle", "bapo", by="the released code's loop, written out")
@pytest.mark.parametrize("seed", range(6))
def test_bounds_are_those_of_the_released_loop(seed: int):
    batch = random_batch(seed, groups=4, samples=4, drift=0.6)
    ratio, advantage, _ = columns(batch)

    def quotient(low: float, high: float) -> float:
        effective = torch.where(advantage >= 0, ratio.clamp(max=high), ratio.clamp(min=low)) * advantage
        return float(effective.clamp(min=0).sum() / -effective.clamp(max=0).sum())

    low, high = 0.6, 1.2
    while quotient(low, high) < 1 and low < 0.8 - 1e-9:
        low += 0.05
    while quotient(low, high) < 1 and high < 2.0 - 1e-9:
        high += 0.05
    assert found_bounds(RELEASED, batch) == pytest.approx((low, high))


@pytest.mark.checks("oracle", "bapo", by="hand-worked numbers")
def test_shares_by_hand():
    """One good token of ratio 2 and one bad one of ratio a half, advantages 1 and -1."""
    batch = random_batch(seed=0, groups=1, samples=2, positions=1, ragged=False)
    ratio = torch.tensor([[2.0], [0.5]], dtype=torch.float64)
    zero = torch.zeros_like(ratio)
    batch = batch.replace(
        advantage=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        proximal=batch.proximal.map(lambda _: zero),
        current=batch.current.map(lambda _: ratio.log()),
    )
    part = BalancedClip(target=0.7, weighted=False)
    shares = dict(zip(part.bounds(), part.shares(batch).tolist(), strict=True))
    pairs = list(shares)
    assert pairs[0] == (0.6, 1.2) and shares[pairs[0]] == pytest.approx(1.2 / 1.8)
    assert shares[pairs[2]] == pytest.approx(1.3 / 1.9)  # upper bound 1.3
    assert shares[pairs[16]] == pytest.approx(2.0 / 2.6), "at an upper bound of 2 the good token is free"
    assert shares[pairs[36]] == pytest.approx(2.0 / 2.6) and pairs[36] == pytest.approx((0.6, 3.0))
    assert shares[pairs[-1]] == pytest.approx(2.0 / 2.9) and pairs[-1] == pytest.approx((0.9, 3.0))
    assert part.bounds()[int(part.prepare(batch)[0])] == pytest.approx((0.6, 1.4)), "1.4 / 2.0 is the first share of 0.7"
    # Counted by gradient, the bad token is out from the start: its ratio is below every lower bound.
    assert BalancedClip(weighted=False, contribution="gradient").shares(batch).tolist() == [1.0] * len(pairs)


@pytest.mark.parametrize("contribution", ["surrogate", "gradient"])
@pytest.mark.parametrize("seed", range(5))
def test_a_higher_upper_bound_never_lowers_the_share(seed: int, contribution: str):
    batch = random_batch(seed, groups=4, samples=4, drift=0.8)
    part = BalancedClip(contribution=contribution)
    shares = part.shares(annotate(bapo, batch))
    rising = shares[:37].diff()
    assert (rising >= -1e-12).all() and rising.max() > 0
    # A higher lower bound: more of the sum, but less of the gradient, is negative.
    assert ((shares[36:].diff() <= 1e-12) if contribution == "surrogate" else (shares[36:].diff() >= -1e-12)).all()


def test_one_sign_alone_ends_the_search_at_once_or_at_the_limits():
    batch = random_batch(seed=3, groups=3, samples=4)
    on = batch.sampled
    first, last = BalancedClip().bounds()[0], BalancedClip().bounds()[-1]
    for sign, expected in ((1.0, first), (-1.0, last)):
        number = BalancedClip().prepare(batch.replace(advantage=sign * on))
        assert BalancedClip().bounds()[int(number[0])] == expected
    assert int(BalancedClip().prepare(batch.replace(advantage=0 * on))[0]) == 0


def test_at_the_first_update_the_bounds_do_not_matter():
    batch = at_proximal(random_batch(seed=4))
    assert_same(gradient(bapo, batch), gradient(grpo.derive(aggregate=TokenMean(), regularize=None), batch))


@pytest.mark.parametrize(
    "knobs",
    [{"target": 1.5}, {"low_start": 0.95}, {"high_start": 0.9}, {"low_limit": 1.1}, {"high_limit": 1.0}, {"low_step": 0.0}],
)
def test_nonsense_is_refused(knobs: dict):
    with pytest.raises(MethodError, match="BalancedClip"):
        BalancedClip(**knobs)
