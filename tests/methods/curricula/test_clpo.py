"""CLPO: what it is without rewriting, and what its KL weighs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import random_batch
from small_learner import SIZES, learner, weights

from upslope.methods import find
from upslope.objective.filter import DropConstantGroups
from upslope.objective.regularize import ReferenceKL, kl_estimate
from upslope.types import Source

clpo, grpo = find("clpo"), find("grpo")
FILTERED = grpo.derive(filter=DropConstantGroups(), regularize=ReferenceKL(weight=0.001))


@pytest.mark.checks("identity", "clpo")
@pytest.mark.parametrize("off", [{"data.hard": -1.0, "data.medium": -1.0}, {"data.which": "none", "regularize.factor": 1.0}])
def test_without_rewriting_it_is_grpo_with_dynamic_filtering_to_the_last_bit(off):
    settings = dataclasses.replace(SIZES, updates_per_step=2)
    made = [learner(method, settings, flat=(1, 2)) for method in (clpo.with_knobs(off), FILTERED)]
    for step in (1, 2):
        found = [each.step(step) for each in made]
        assert found[0]["kept_rows"] == found[1]["kept_rows"] and "further_samples" not in found[0]
    assert torch.equal(weights(made[0]), weights(made[1]))


@pytest.mark.checks("oracle", "clpo", by="hand-worked numbers")
def test_the_kl_of_hard_rows_weighs_half():
    """k3 of a log-ratio x is e^x - x - 1: with x = ln 2 and β = 0.001 that is 0.001 (2 - 0.6931 - 1), and half of it if hard."""
    batch = random_batch(seed=0, groups=2, samples=2, positions=3, ragged=False)
    start = dataclasses.replace(batch.reference["start"], logp=batch.current.logp.detach() + torch.log(torch.tensor(2.0)))
    hard = torch.tensor([1.0, 0.0, 0.0, 1.0])
    found = clpo.regularize[0](batch.replace(reference={"start": start}, signal={"hard": hard}))
    one = 0.001 * (1 - 0.69314718)
    assert found[:, 0].tolist() == pytest.approx([one / 2, one, one, one / 2], rel=1e-5)
    plain = clpo.regularize[0](batch)
    expected = 0.001 * kl_estimate(batch.current.logp, batch.reference["start"].logp, "k3").clamp(-10, 10)
    assert torch.equal(plain, expected), "unmarked rows weigh the same"


def test_what_the_task_rewrites_is_answered_and_learned_from():
    """An untrained model that is paid for letters: with a bar of 0.6 some answers succeed, and so do some to easier problems."""
    method = clpo.with_knobs({"data.rewriter": "TaskRewrites()", "data.success": 0.6, "data.hard": 0.5, "data.medium": 1.0})
    made = learner(method)
    found = made.step(1)
    rows = made.last
    further = rows.label["source"] == Source.FURTHER
    assert found["rewritten"] == 4 and found["further_samples"] == 16 and found["rewrites_kept"] * 4 == further.sum() > 0
    assert {note["made_by"] for note, own in zip(rows.info, further.tolist(), strict=True) if own} == {"rewriting"}
    own = [note["prompt"] for note, new in zip(rows.info, further.tolist(), strict=True) if not new]
    assert all(note["made_from"][0] in own for note, new in zip(rows.info, further.tolist(), strict=True) if new)
    assert found["samples"] == 32


def test_what_the_policy_rewrites_costs_a_text_for_each():
    made = learner(clpo.with_knobs({"data.success": 0.6}))
    found = made.step(1)
    asked = found["rewritten"] + found["rewrites_dropped"]
    assert found["further_samples"] == asked + 4 * found["rewritten"] and asked > 0
