"""Supervised fine-tuning on the one estimator."""

from __future__ import annotations

import pytest
import torch
from batches import gradient, random_batch
from oracles import llama_loss
from small_models import policy_of

from upslope.methods import find
from upslope.objective.estimator import annotate, begin_update, decision_losses, method_loss
from upslope.objective.ratio.on_policy import OnPolicy
from upslope.objective.surrogate import Unclipped
from upslope.rollout.text_rows import token_rows

sft = find("sft")


@pytest.mark.checks("identity", "sft")
def test_it_is_the_policy_gradient_of_data_that_all_count_as_good():
    """The unified estimator: denominator sg[pi], advantage one."""
    batch = random_batch(seed=1)
    assert torch.equal(gradient(sft, batch).logp, gradient(sft.derive(ratio=OnPolicy(), surrogate=Unclipped()), batch).logp)


@pytest.mark.checks("oracle", "sft", by="transformers")
def test_loss_and_gradient_are_those_of_transformers():
    """In float64: the rounding of float32 is by itself more than the tolerance on some processors."""
    policy = policy_of("llama")
    policy.model.double()
    prompts, answers = [[1, 5, 9], [1, 4, 4, 8], [1]], [[7, 8, 2], [12, 2], [5, 5, 5, 5, 2]]
    rows = token_rows(policy, prompts, answers)
    rows = begin_update(sft, annotate(sft, rows))
    losses, _ = decision_losses(sft, rows.replace(current=policy.evaluate(rows)))
    losses.sum().backward()
    mine = {name: weight.grad.clone() for name, weight in policy.model.named_parameters()}
    policy.model.zero_grad()
    theirs = llama_loss(policy.model, prompts, answers)
    theirs.backward()
    assert float(losses.sum()) == pytest.approx(float(theirs), abs=1e-6)
    for name, weight in policy.model.named_parameters():
        assert torch.allclose(mine[name], weight.grad, atol=1e-6), name


def test_what_was_earned_changes_nothing():
    batch = random_batch(seed=2)
    assert float(method_loss(sft, batch)) == float(method_loss(sft, batch.replace(reward=batch.reward * -3 + 1)))
