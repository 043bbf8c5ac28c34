"""EMPG: factors of mean one, a bonus for clear next steps, and GRPO when both are off."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.estimator import annotate
from upslope.objective.shape.modulate import EntropyModulation, modulation, normalised, steps
from upslope.runtime.seeding import generator
from upslope.types import Batch, Method

empg, grpo = find("empg"), find("grpo")
OFF = {"shape.scale": 0.0, "shape.bonus": 0.0}


def shaped(batch: Batch, **knobs: float | str) -> Tensor:
    return EntropyModulation(**knobs)(annotate(grpo, batch))


def flat(batch: Batch) -> Batch:
    return replace_view(batch, "proximal", entropy=torch.full_like(batch.sampled, 0.3))


@pytest.mark.checks("identity", "empg")
def test_with_both_off_it_is_grpo(ragged_batch: Batch):
    off = empg.with_knobs({**OFF, "shape.centre": "none"})
    assert_same(gradient(off, ragged_batch), gradient(grpo, ragged_batch), rtol=1e-12)
    # Centred, it differs by one number for all.
    on = ragged_batch.sampled > 0
    shift = (shaped(ragged_batch, scale=0.0, bonus=0.0) - annotate(grpo, ragged_batch).advantage)[on]
    assert shift.std() < 1e-12


@pytest.mark.checks("identity", "empg")
def test_equal_entropies_shift_all_but_the_last_steps_by_the_bonus():
    batch = flat(random_batch(seed=1, groups=3, samples=4))
    on = batch.sampled > 0
    shift = shaped(batch, bonus=0.07, centre="none") - annotate(grpo, batch).advantage
    _, after = steps(batch, "item")
    step, _ = steps(batch, "item")
    torch.testing.assert_close(shift[on], 0.07 * after[step].double())
    assert shaped(batch, bonus=0.0, centre="none")[on].equal(annotate(grpo, batch).advantage[on])


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(4))
def test_factors_have_mean_one(seed: int, scale: float):
    level = normalised(torch.rand(37, generator=generator(seed, "level"), dtype=torch.float64))
    assert level.min() == 0 and level.max() == 1
    factor = modulation(level, scale)
    assert factor.mean().item() == pytest.approx(1.0, abs=1e-12)
    assert factor.max() / factor.min() == pytest.approx(math.exp(scale))


@pytest.mark.checks("oracle", "empg", by="hand-worked numbers")
def test_two_rows_of_two_steps_by_hand():
    batch = random_batch(seed=0, groups=1, samples=2, positions=4, ragged=False)
    entropy = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.4, 0.6, 0.9, 0.1]], dtype=torch.float64)
    batch = replace_view(batch, "proximal", entropy=entropy).replace(
        advantage=torch.tensor([[1.0] * 4, [-1.0] * 4], dtype=torch.float64), segment={"item": torch.tensor([[0, 0, 1, 1]] * 2)}
    )
    # Step entropies 0, 1 and 0.5, 0.5: normalised the same.
    sure, unsure, middle = 1.0, math.exp(-1), math.exp(-0.5)
    mean = (sure + unsure + 2 * middle) / 4
    rows = [[sure / mean + 0.1 * unsure, unsure / mean], [-middle / mean + 0.1 * middle, -middle / mean]]
    found = EntropyModulation(bonus=0.1, centre="none")(batch)
    torch.testing.assert_close(found, torch.tensor(rows, dtype=torch.float64).repeat_interleave(2, 1))
    centre = sum(map(sum, rows)) / 4
    torch.testing.assert_close(EntropyModulation(bonus=0.1)(batch), found - centre)
    torch.testing.assert_close(EntropyModulation(bonus=0.1, centre="tokens")(batch), found - centre)


def test_tokens_and_steps_are_different_means():
    batch = random_batch(seed=3)
    on = batch.sampled > 0
    assert shaped(batch, centre="tokens")[on].mean().abs() < 1e-12
    by_step, _ = steps(batch, "item")
    values = shaped(batch, centre="steps")[on]
    count = torch.bincount(by_step).double()
    means = torch.zeros_like(count).index_add_(0, by_step, values) / count
    assert means.mean().abs() < 1e-12 and values.mean().abs() > 1e-6


def test_steps_of_a_row_are_numbered_in_order_and_the_last_has_none_behind():
    batch = random_batch(seed=4, groups=1, samples=3, positions=6)
    batch = batch.replace(
        sampled=torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1]]).double(),
        segment={"item": torch.tensor([[7, 7, 9, 9, 1, 1], [0] * 6, [2, 2, 2, 2, 2, 5]])},
    )
    step, after = steps(batch, "item")
    assert step.tolist() == [0, 0, 1, 1, 2, 2, 3] and after.tolist() == [True, False, True, False]


def _confident_wrong(method: Method) -> float:
    """Slope on a confident wrong step over that on an uncertain wrong one, at the first update."""
    batch = random_batch(seed=0, groups=1, samples=2, positions=4, ragged=False)
    entropy = torch.tensor([[0.05, 0.05, 1.5, 1.5]] * 2, dtype=torch.float64)
    reward = torch.tensor([1.0, 0.0], dtype=torch.float64)
    batch = replace_view(batch, "proximal", entropy=entropy).replace(
        reward=reward, components={"task": reward}, segment={"item": torch.tensor([[0, 0, 1, 1]] * 2)},
        current=batch.proximal.map(lambda column: column.clone().requires_grad_()),
    )  # fmt: skip
    slope = gradient(method.derive(regularize=None), batch).logp[1]
    return float(slope[0] / slope[2])


def test_confident_errors_are_unlearned_faster():
    assert _confident_wrong(grpo) == pytest.approx(1.0)
    assert _confident_wrong(empg.with_knobs({"shape.bonus": 0.0, "shape.centre": "none"})) == pytest.approx(math.e)


def test_what_is_missing_is_said():
    batch = annotate(grpo, random_batch(seed=0))
    for poorer in (batch.replace(advantage=None), batch.replace(proximal=None), batch.replace(segment={})):
        with pytest.raises(MethodError, match="EntropyModulation"):
            EntropyModulation()(poorer)
