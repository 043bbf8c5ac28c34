"""SEED-GRPO's factor: one where all answers agree, f(alpha) where none do."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.shape.semantic import SemanticEntropy
from upslope.types import Batch

seed_grpo, dr_grpo = find("seed-grpo"), find("dr-grpo")


def answered(*groups: list[int]) -> Batch:
    """Groups whose answers fall into these classes."""
    batch = random_batch(seed=0, groups=len(groups), samples=len(groups[0]))
    return batch.replace(label={"answer": torch.tensor(groups).flatten()})


@pytest.mark.checks("identity", "seed-grpo")
def test_with_alpha_zero_it_is_dr_grpo():
    batch = random_batch(seed=1)
    assert_same(gradient(seed_grpo.with_knobs({"shape.alpha": 0.0}), batch), gradient(dr_grpo, batch), exact=True)


@pytest.mark.checks("identity", "seed-grpo")
@pytest.mark.parametrize("entropy", ["mean_log", "shannon"])
@pytest.mark.parametrize("form", ["linear", "exponential", "focal"])
def test_one_class_is_left_alone_and_all_distinct_get_f_of_alpha(form: str, entropy: str):
    batch = answered([7, 7, 7, 7], [1, 2, 3, 4], [5, 5, 5, 5])
    part = SemanticEntropy(alpha=0.3, form=form, power=3.0, entropy=entropy)
    least = {"linear": 0.7, "exponential": math.exp(-0.3), "focal": 0.7**3}[form]
    assert part.factor(batch).tolist() == pytest.approx([1.0] * 4 + [least] * 4 + [1.0] * 4)


@pytest.mark.checks("oracle", "seed-grpo", by="hand-worked numbers")
def test_entropy_of_counts():
    # Classes of 2, 1 and 1 of four: shares 1/2, 1/4, 1/4. Mean log: (log 2 + 2 log 4) / 3 = 5/3 log 2; over log 4 that is 5/6.
    # Shannon: (1/2) log 2 + (1/2) log 4 = 3/2 log 2; over log 4 that is 3/4.
    batch = answered([9, 9, 4, 6])
    assert SemanticEntropy().relative_entropy(batch).tolist() == pytest.approx([5 / 6] * 4)
    assert SemanticEntropy(entropy="shannon").relative_entropy(batch).tolist() == pytest.approx([3 / 4] * 4)
    assert SemanticEntropy(alpha=0.6, form="linear").factor(batch)[0].item() == pytest.approx(0.5)
    assert SemanticEntropy(alpha=0.6).factor(batch)[0].item() == pytest.approx(math.exp(-0.5))
    assert SemanticEntropy(alpha=2.0, form="linear").factor(batch)[0].item() == 0.0, "never below zero"


def test_the_same_class_in_two_groups_is_two_classes():
    assert SemanticEntropy().relative_entropy(answered([1, 1], [1, 2])).tolist() == pytest.approx([0, 0, 1, 1])


def test_prompts_with_a_random_verifier_get_smaller_updates():
    batch = answered([3, 3, 3, 8], [1, 2, 3, 4])
    reward = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]).double()
    batch = batch.replace(reward=reward, components={"task": reward})
    ours, parent = gradient(seed_grpo, batch).logp, gradient(dr_grpo, batch).logp
    kept = (ours.abs().sum(1) / parent.abs().sum(1)).view(2, 4).mean(1)
    assert kept[1].item() == pytest.approx(math.exp(-0.5)) and kept[0] > kept[1] + 0.1


def test_it_says_what_it_needs():
    assert "label.answer" in seed_grpo.needs()
    with pytest.raises(MethodError, match="answer"):
        gradient(seed_grpo, random_batch(seed=1).replace(label={}))
    with pytest.raises(MethodError, match=r"-0\.1"):
        SemanticEntropy(alpha=-0.1)
