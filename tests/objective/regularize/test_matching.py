"""DMPO's term: over what the distance of the groups is averaged."""

from __future__ import annotations

import math

import pytest
import torch
from batches import CUTS, assert_same, gradient, random_batch, replace_view

from upslope.methods import find
from upslope.objective.regularize.matching import GroupMatching
from upslope.types import Batch

pure = find("dmpo-pure")


def three_groups() -> Batch:
    """Answers of one token: two equal ones, a wrong and a right one, one alone; P = (3/4, 1/4) in both pairs."""
    batch = random_batch(seed=0, groups=1, samples=5, positions=1, ragged=False)
    batch = batch.replace(group=torch.tensor([0, 0, 1, 1, 2]), reward=torch.tensor([1.0, 1, 0, 1, 1], dtype=torch.float64))
    return replace_view(batch, "current", logp=torch.tensor([[0.3], [0.1], [0.3], [0.1], [0.5]], dtype=torch.float64).log())


@pytest.mark.parametrize(
    ("mean_over", "skip_flat", "expected"),
    [
        # Squares: (1/4)² twice in the first pair, (3/4)² twice in the second, nothing alone.
        ("groups", False, (1 / 16 + 9 / 16 + 0) / 3),
        ("kept", False, (1 / 8 + 9 / 8 + 0) / 5),  # five answers
        ("groups", True, (0 + 9 / 16 + 0) / 3),
        ("kept", True, (9 / 8) / 2),  # the two answers of the one group with signal
    ],
)
def test_squares_over_groups_or_over_what_is_kept(mean_over: str, skip_flat: bool, expected: float):
    part = GroupMatching(mean_over=mean_over, skip_flat=skip_flat)
    assert gradient(pure.derive(regularize=part), three_groups()).loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("mean_over", "groups"), [("groups", 3), ("kept", 1)])
def test_other_divergences_over_all_groups_or_those_kept(mean_over: str, groups: int):
    # P = (3/4, 1/4), Q = (0, 1), middle (3/8, 5/8): (3/4 log 2 + 1/4 log 2/5 + log 8/5) / 2.
    shannon = (0.75 * math.log(2) + 0.25 * math.log(0.4) + math.log(1.6)) / 2
    part = GroupMatching(divergence="jensen-shannon", mean_over=mean_over, skip_flat=True)
    assert gradient(pure.derive(regularize=part), three_groups()).loss.item() == pytest.approx(shannon / groups, rel=1e-6)


@pytest.mark.parametrize("how", CUTS)
def test_what_is_kept_does_not_depend_on_how_the_update_is_cut(how: str):
    method = pure.derive(regularize=GroupMatching(mean_over="kept", skip_flat=True))
    batch = random_batch(seed=3, groups=4, samples=4, empty_rows=1)
    batch = batch.replace(reward=torch.where(batch.group == batch.group[4], 1.0, batch.reward))
    assert_same(gradient(method, batch, how), gradient(method, batch))


def test_nothing_kept_is_zero():
    method = pure.derive(regularize=GroupMatching(mean_over="kept", skip_flat=True))
    batch = three_groups()
    found = gradient(method, batch.replace(reward=torch.ones_like(batch.reward)))
    assert found.loss == 0 and not found.logp.any() and found.finite()
