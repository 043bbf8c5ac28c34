"""AHPO: GRPO, and beside it imitation where right answers are scarce."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import assert_same, gradient, random_batch
from oracles import TRINITY_CLIP, TRINITY_ROUNDING, assert_loss_and_gradient, side_by_side, trinity_mix
from small_learner import SIZES, learner, weights

from upslope.methods import find
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Batch

ahpo, grpo = find("ahpo"), find("grpo")
SETTINGS = dataclasses.replace(SIZES, updates_per_step=2)


@pytest.mark.checks("identity", "ahpo")
def test_without_demonstrations_it_is_grpo(ragged_batch: Batch):
    assert_same(gradient(ahpo, ragged_batch), gradient(grpo, ragged_batch), exact=True)


def stepped(method) -> tuple[torch.Tensor, dict[str, float]]:
    made = learner(method, SETTINGS, flat=[0, 1], always=True)
    told = made.step(1)
    return weights(made), told


@pytest.mark.checks("identity", "ahpo")
def test_needing_no_right_answer_is_grpo_to_the_last_bit():
    assert stepped(ahpo.with_knobs({"data.gate.needed": 0}))[0].equal(stepped(grpo)[0])


def test_needing_more_than_there_are_is_grpo_and_imitation():
    """Every group imitates and none of its samples is dropped; the losses of both are those of each alone."""
    _, always = stepped(ahpo.with_knobs({"data.gate.needed": 5}))
    _, own = stepped(grpo)
    assert (always["gated_groups"], always["kept_rows"]) == (1.0, 1.0) and always["imitation_loss"] > 0
    made = learner(ahpo.with_knobs({"data.gate.needed": 5}), SIZES, flat=[0, 1], always=True)
    told, plain = made.step(1), learner(grpo, SIZES, flat=[0, 1], always=True).step(1)
    assert told["loss"] == plain["loss"] and told["reward"] == own["reward"]
    assert made.last.aside["demonstration"].rows == 4


def test_a_group_that_fails_keeps_its_samples_beside_its_demonstration():
    made = learner(ahpo, SETTINGS, flat=[0, 1], always=True)
    told, rows = made.step(1), made.last
    assert rows.rows == 16 and rows.aside["demonstration"].rows == 2 and told["gated_groups"] == 0.5
    assert torch.isin(rows.aside["demonstration"].group, rows.group).all()


@pytest.mark.oracle("trinity-rft")
@pytest.mark.checks("oracle", "ahpo", by="trinity-rft")
@pytest.mark.parametrize("seed", range(4))
def test_both_losses_together_are_those_of_trinity(seed: int):
    mu, batch = 0.5, random_batch(seed, groups=3, samples=4)
    expert = torch.arange(batch.rows) % 4 == 1
    own = ahpo.derive(surrogate=PessimisticClip(**TRINITY_CLIP), regularize=None)
    term = dict(ahpo.terms)["imitation"].as_method("imitation", ahpo)
    ours = side_by_side(gradient(own, batch.take_rows(~expert)), gradient(term, batch.take_rows(expert)), expert, mu)
    assert_loss_and_gradient(ours, *trinity_mix(own, batch, expert, mu, "seq-mean-token-mean"), rtol=TRINITY_ROUNDING)
