"""Preferences from trees: identities, losses of single steps by hand, and what a run of each does."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.contest import BestWorst
from upslope.objective.advantage.siblings import SiblingValues
from upslope.objective.estimator import annotate, kept
from upslope.types import Batch, View

mcts, online = find("mcts-dpo"), find("online-dpo")


def siblings(value: list[float], visits: list[float], groups: int = 1, seed: int = 0) -> Batch:
    """Steps behind the same beginnings, ragged, with what a search has found of them."""
    batch = random_batch(seed, groups=groups, samples=len(value) // groups)
    signal = {name: torch.tensor(column, dtype=torch.float64) for name, column in (("value", value), ("visits", visits))}
    return batch.replace(signal=signal, reward=signal["value"].nan_to_num(), components={"task": signal["value"].nan_to_num()})


def sides(part: SiblingValues, batch: Batch) -> list[float]:
    return [round(each, 6) for each in batch.row_mean(part(batch)).tolist()]


# -- mcts-dpo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "mcts-dpo")
def test_put_back_it_is_online_dpo():
    """Without a tree, and in a tree of whole answers in which every win is certain, where value is reward."""
    batch = siblings([0.5, -1.0, 1.0, 0.0, 0.3, 0.2, 0.2, 0.9], [3.0, 1.0, 2.0, 4.0] * 2, groups=2)
    back = mcts.derive(rollout=None, advantage=BestWorst())
    certain = mcts.with_knobs({"advantage.smoothing": False})
    for method in (back, certain):
        assert_same(gradient(method, batch), gradient(online, batch), exact=True)


@pytest.mark.checks("oracle", "mcts-dpo", by="hand-worked numbers")
def test_loss_of_a_pair_of_steps_by_hand():
    """Winner visited 3 times, loser once: a = 1 - 1/(1 + 1/3) = 1/4. Winner moved by 1, loser by -3: D = 4, with β = 0.5 z = 2,
    L = -(3/4) log σ(2) - (1/4) log σ(-2) = 3/4 · 0.126928 + 1/4 · 2.126928 = 0.626928; dL/dz = σ(2) - 3/4 = 0.130797."""
    on = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    start = torch.tensor([[-2.0, 0.0], [-1.0, -1.0]], dtype=torch.float64)
    logp = torch.tensor([[-1.0, 0.0], [-3.0, -2.0]], dtype=torch.float64)
    batch = siblings([1.0, -0.5], [3.0, 1.0]).replace(key=None, segment={})
    batch = batch.replace(
        **{name: getattr(batch, name)[:, :2] for name in ("action", "temperature", "step_reward", "bootstrap", "ended")}
    )
    batch = batch.replace(sampled=on, current=View(logp.requires_grad_()), behavior=View(start), reference={"start": View(start)},
                          proximal=View(start))  # fmt: skip
    found = gradient(mcts.with_knobs({"surrogate.beta": 0.5}), batch)
    assert float(found.loss) == pytest.approx(0.626928, abs=1e-6)
    slope = 0.5 * (1 / (1 + math.exp(-2)) - 0.75)
    assert found.logp.tolist() == [pytest.approx([slope, 0.0]), pytest.approx([-slope, -slope])]


def test_tokens_that_both_steps_begin_with_push_nowhere():
    """In a model they are the same number, and what one side gives them the other takes: ratios begin where steps differ."""
    found = gradient(mcts, siblings([1.0, -0.5], [3.0, 1.0]))
    assert float(found.logp[0, 0]) == -float(found.logp[1, 0]) != 0


def test_sides_are_by_value_then_visits_and_as_sure_as_visits_say():
    part = SiblingValues()
    assert sides(part, siblings([0.1, 0.9, 0.5], [1, 4, 2])) == [-0.6, 0.6, 0.0]  # a = 1 - 1/(1 + 1/4) = 0.2
    assert sides(part, siblings([0.9, 0.9, 0.1, 0.1], [1, 2, 1, 0])) == [0.0, 1.0, 0.0, -1.0]  # nobody went to the loser: certain
    assert sides(part, siblings([0.9, 0.1], [1, 3])) == [0.0, 0.0]  # a = 3/4, at most 1/2: nothing is known
    assert sides(part, siblings([0.9, 0.1], [0, 0])) == [1.0, -1.0]
    assert sides(part, siblings([0.4, 0.4], [5, 1])) == [0.0, 0.0]
    assert sides(part, siblings([math.nan, 0.4, 0.2], [9, 2, 0])) == [0.0, 1.0, -1.0]
    assert sides(part, siblings([math.nan, 0.4], [9, 2])) == [0.0, 0.0]
    assert sides(SiblingValues(smoothing=False), siblings([0.9, 0.1], [1, 3])) == [1.0, -1.0]
    every = SiblingValues(smoothing=False, losers=True)
    assert sides(every, siblings([0.1, 0.9, 0.5], [1, 1, 1])) == [-1.0, 1.0, -1.0]
    assert sides(SiblingValues(smoothing=False, gap=0.5), siblings([0.9, 0.4, 0.9, 0.3], [1] * 4, groups=2)) == [0, 0, 1.0, -1.0]


def test_steps_that_take_no_part_are_dropped():
    batch = siblings([0.1, 0.9, 0.5, math.nan, 0.2, 0.2], [1.0, 4.0, 2.0, 0.0, 1.0, 1.0], groups=2)
    assert kept(mcts, annotate(mcts, batch), late=True).nonzero().squeeze(1).tolist() == [0, 1]


def test_without_a_search_it_says_what_to_take():
    with pytest.raises(MethodError, match="rollout=Search"):
        SiblingValues()(random_batch(0))
