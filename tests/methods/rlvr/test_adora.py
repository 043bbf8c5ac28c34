"""ADORA's weights: which groups count in full, and the parent method with the weights at one."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.shape.utility import RolloutUtility
from upslope.types import Batch, Ended

adora, grpo = find("adora"), find("grpo")


def group(lengths: list[int], right: list[int], cut: tuple[int, ...] = ()) -> Batch:
    """One group of answers of these lengths; ``cut`` names those that the limit ended."""
    batch = random_batch(seed=0, groups=1, samples=len(lengths), positions=max(lengths), ragged=False)
    place = torch.arange(max(lengths))
    sampled = (place < torch.tensor(lengths).unsqueeze(1)).double()
    last = place == torch.tensor(lengths).unsqueeze(1) - 1
    how = torch.tensor([int(Ended.TRUNCATED if row in cut else Ended.TERMINATED) for row in range(len(lengths))])
    return batch.replace(sampled=sampled, reward=torch.tensor(right).double(), ended=(last * how.unsqueeze(1)).to(torch.int8))


def weight(batch: Batch, **fields) -> float:
    found: Tensor = RolloutUtility(**fields).weight(batch)
    assert (found == found[0]).all(), "one weight for a whole group"
    return found[0].item()


@pytest.mark.checks("identity", "adora")
def test_with_equal_weights_it_is_grpo():
    batch = random_batch(seed=1)
    assert_same(gradient(adora.with_knobs({"shape.useless": 1.0}), batch), gradient(grpo, batch), exact=True)


@pytest.mark.checks("oracle", "adora", by="hand-worked numbers")
def test_length_rule():
    assert weight(group([5, 3, 2], [1, 0, 0])) == 1.0  # 5 > 2.5
    assert weight(group([2, 3, 2], [1, 0, 0])) == 0.1  # 2 < 2.5
    assert weight(group([3, 1, 3, 3], [1, 1, 0, 0])) == 0.1  # the longest right one decides, and 3 is not above 3
    assert weight(group([4, 1, 3, 4], [1, 1, 0, 0])) == 1.0  # 4 > 3.5
    # A wrong answer that the limit cut says nothing about how long one has to think.
    assert weight(group([4, 2, 8], [1, 0, 0])) == 0.1
    assert weight(group([4, 2, 8], [1, 0, 0], cut=(2,))) == 1.0
    assert weight(group([8, 2, 2], [1, 0, 0], cut=(0,))) == 1.0, "a right answer counts even if it was cut"


def test_groups_without_right_or_wrong_answers_follow_their_flags():
    none, cut = group([3, 4], [0, 0]), group([3, 4], [1, 0], cut=(1,))
    assert weight(none) == 0.1 and weight(none, without_right=True) == 1.0
    assert weight(cut) == 1.0 and weight(cut, without_wrong=False) == 0.1


@pytest.mark.checks("oracle", "adora", by="hand-worked numbers")
def test_difficulty_rule_and_amplification():
    hard, easy = group([2, 3, 3, 3], [1, 0, 0, 0]), group([4, 4, 4, 2], [1, 1, 1, 0])
    assert (weight(hard, by="difficulty"), weight(easy, by="difficulty")) == (1.0, 0.1)
    assert weight(easy, by="difficulty", hard=0.75) == 1.0
    assert (weight(hard, by="both"), weight(easy, by="both"), weight(easy)) == (0.1, 0.1, 1.0)
    assert (weight(hard, by="difficulty", useful=2.0, useless=1.0), weight(easy, by="difficulty", useless=1.0)) == (2.0, 1.0)


def test_the_weight_scales_whole_groups():
    batch = random_batch(seed=3, groups=4, samples=4)
    plain = grpo.derive(regularize=None)
    scaled, parent = gradient(plain.derive(shape=adora.shape), batch), gradient(plain, batch)
    factor = adora.shape[0].weight(batch)
    assert set(factor.tolist()) == {0.1, 1.0}, "both kinds of group belong to this test"
    torch.testing.assert_close(scaled.logp, parent.logp * factor.unsqueeze(1))


def test_rows_without_a_known_end_are_not_cut():
    batch = group([4, 2, 8], [1, 0, 0], cut=(2,))
    assert weight(batch.replace(ended=None)) == 0.1


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="-1"):
        RolloutUtility(useless=-1.0)
