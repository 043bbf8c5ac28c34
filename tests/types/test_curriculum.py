"""Offers and orders: what a curriculum is asked, and what it may answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from upslope.errors import MethodError
from upslope.objective.curriculum import ByUncertainty
from upslope.types import Offer, Order, draw_by_weight, take_nearest


def offer(count: int, wanted: int, seed: int = 0) -> Offer:
    blank = torch.zeros(count, dtype=torch.int64)
    uniform = torch.from_numpy(np.random.default_rng(seed).random(count))
    return Offer(torch.arange(count) * 7 + 1, blank, torch.full((count,), torch.nan), uniform, wanted)


@pytest.mark.parametrize("seed", range(5))
def test_a_draw_by_weight_is_numpys_race_on_the_same_numbers(seed):
    weight = np.random.default_rng(seed + 100).random(500) ** 3
    weight[::50] = 0.0
    gumbel = np.random.default_rng(seed).gumbel(size=500)
    expected = np.argsort(-(np.log(np.maximum(weight, 1e-300)) + gumbel), kind="stable")[:64]
    order = draw_by_weight(offer(500, 64, seed), torch.from_numpy(weight))
    assert order.chosen.tolist() == expected.tolist()
    assert order.why["weight"].tolist() == weight[expected].tolist()


def test_a_draw_by_weight_takes_tasks_as_often_as_they_weigh():
    weight = torch.tensor([1.0, 2.0, 5.0])
    first = [int(draw_by_weight(offer(3, 1, seed), weight).chosen[0]) for seed in range(4000)]
    shares = torch.bincount(torch.tensor(first), minlength=3) / 4000
    # Four standard errors of a share of 5/8.
    torch.testing.assert_close(shares, weight / 8, rtol=0, atol=0.031)


def test_the_nearest_stand_in_the_order_offered():
    distance = torch.tensor([0.3, 0.1, 0.2, 0.1, 0.0])
    order = take_nearest(offer(5, 3), distance, {"posterior": torch.arange(5.0)})
    assert order.chosen.tolist() == [1, 3, 4] and order.why["posterior"].tolist() == [1.0, 3.0, 4.0]
    assert take_nearest(offer(2, 3), distance[:2], {}).chosen.tolist() == [0, 1], "there may be fewer than are wanted"


def test_further_numbers_belong_to_the_offer_and_the_part():
    one, part = replace(offer(4, 2), seed=3), ByUncertainty()
    assert one.generator(part).random() == one.generator(part).random() != replace(one, seed=4).generator(part).random()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Order(torch.tensor([], dtype=torch.int64)), "at least one place"),
        (Order(torch.tensor([1, 1])), "none twice"),
        (Order(torch.tensor([5])), "of the 5 that were offered"),
        (Order(torch.tensor([0, 1]), torch.tensor([3])), "for each of 2 chosen"),
        (Order(torch.tensor([0, 1]), torch.tensor([3, 0])), "at least 1"),
        (Order(torch.tensor([0]), limit=-1), "limit=-1"),
        (Order(torch.tensor([0]), temperature=-0.5), "temperature=-0.5"),
        (Order(torch.tensor([0]), why={"weight": torch.ones(2)}), "'weight'"),
    ],
)
def test_orders_that_cannot_be_met_are_told(order, said):
    assert said in order.problem(offer(5, 2))
    assert Order(torch.tensor([4, 0]), torch.tensor([1, 9]), 3, 0.5).problem(offer(5, 2)) == ""


def test_an_offer_of_nobody_knows_nothing():
    with pytest.raises(MethodError, match="'success'"):
        offer(3, 1).recall("success")
    with pytest.raises(MethodError, match="'value'"):
        offer(3, 1).value("value")
