"""DCPO: bounds that follow the token's probability, and advantages that remember what the task earned."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from batches import assert_same, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.history import SmoothBaseline
from upslope.objective.aggregate import TokenMean
from upslope.objective.base import State
from upslope.objective.surrogate.probability import ProbabilityClip
from upslope.runtime.files import load_state, save_state
from upslope.types import Batch

dcpo, grpo = find("dcpo"), find("grpo")


def visit(rewards: list[list[float]], tasks: list[int]) -> Batch:
    """One step: a group of these rewards for each of these tasks."""
    batch = random_batch(seed=0, groups=len(rewards), samples=len(rewards[0]))
    return batch.replace(
        reward=torch.tensor(rewards, dtype=torch.float64).flatten(), task=torch.tensor(tasks).repeat_interleave(len(rewards[0]))
    )


def advantages(part: SmoothBaseline, state: State, batch: Batch) -> Tensor:
    return part(batch.replace(state={part: state})).sum(1) / batch.lengths()


# -- the clip --------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "dcpo", by="closed forms and the paper's table")
def test_bounds_hold_the_products_they_are_made_of():
    chance = torch.tensor([0.9, 0.5, 0.1, 0.01], dtype=torch.float64)
    low, high = ProbabilityClip().bounds(chance.log())
    torch.testing.assert_close((high - 1) * high * chance, torch.full_like(chance, 0.2))
    free = low > 0.5
    assert free.tolist() == [True, False, False, False], "4 * 0.16 is above the last three"
    torch.testing.assert_close(((1 - low) * low * chance)[free], torch.full_like(chance[free], 0.16))
    reached = torch.stack([low, high]) * chance  # probabilities that may be reached
    assert reached[:, 0].tolist() == pytest.approx([0.692, 1.068], abs=5e-4)
    assert reached[:, 3].tolist() == pytest.approx([0.005, 0.05])
    # 1 + 4 * 0.2 / q = 361 at q = 1/450: exactly at the cap of ten; below it the cap holds, above it the formula.
    ends = ProbabilityClip().bounds(torch.tensor([1 / 450, 1e-9, 0.0, 0.02]).double().log())[1].tolist()
    assert ends == pytest.approx([10.0, 10.0, 10.0, 0.5 + 0.5 * math.sqrt(41)])


@pytest.mark.checks("oracle", "dcpo", by="hand-worked numbers")
def test_losses_inside_and_outside_the_bounds():
    batch = random_batch(seed=1, groups=1, samples=2, positions=2, ragged=False)
    # q = 0.01: [0.5, 5]. q = 0.9: [0.7688, 1.1872].
    old = torch.tensor([[0.01, 0.9], [0.01, 0.9]]).double().log()
    ratio = torch.tensor([[6.0, 1.1], [0.4, 12.0]]).double()
    batch = batch.replace(
        advantage=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).double(),
        proximal=type(batch.proximal)(old),
        current=type(batch.proximal)((old + ratio.log()).requires_grad_()),
    )
    loss, notes = dcpo.surrogate(batch, dcpo.ratio(batch))
    # Clipped at 5; free; clipped at 0.5; wrong and far too likely: 12 is bounded by the dual clip at 10.
    torch.testing.assert_close(loss.detach(), torch.tensor([[-5.0, -1.1], [0.5, 10.0]]).double())
    assert notes["clipped_high"].tolist() == [[True, False], [False, False]]
    assert notes["clipped_low"].tolist() == [[False, False], [True, False]]
    assert notes["clipped_dual"].tolist() == [[False, False], [False, True]]
    slope = torch.autograd.grad(loss.sum(), batch.current.logp)[0]
    torch.testing.assert_close(slope, torch.tensor([[0.0, -1.1], [0.0, 0.0]]).double())


# -- the advantage ---------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "dcpo")
def test_the_first_visit_is_grpo():
    batch = random_batch(seed=2)
    plain = grpo.with_knobs({"advantage.eps": 0.0})
    reverted = dcpo.derive(surrogate=grpo.surrogate, aggregate=grpo.aggregate, regularize=grpo.regularize)
    assert_same(gradient(reverted, batch), gradient(plain, batch), exact=True)
    released = dcpo.derive(aggregate=TokenMean())
    scaled = gradient(dcpo.derive(aggregate=grpo.aggregate), batch).logp * batch.rows
    torch.testing.assert_close(gradient(dcpo, batch).logp, scaled)
    assert gradient(released, batch).finite()


@pytest.mark.checks("oracle", "dcpo", by="hand-worked numbers")
def test_the_second_visit_mixes_both():
    part = SmoothBaseline(ddof=0)
    state = part.update(part.init(), visit([[1, 0, 0, 0]], [7]), {})
    second = visit([[1, 1, 0, 0]], [7])
    found = advantages(part, state, second)
    # Over all eight rewards: mean 3/8, population variance 15/64. At i = 2 both mixes are the mean of A_new and A_total.
    total = [(r - 3 / 8) / math.sqrt(15 / 64) for r in (1, 1, 0, 0)]
    assert found.tolist() == pytest.approx([(new + old) / 2 for new, old in zip((1, 1, -1, -1), total, strict=True)])
    state = part.update(state, second, {})
    assert (state["visits"].item(), state["mean"].item(), state["std"].item()) == pytest.approx((2, 3 / 8, math.sqrt(15 / 64)))
    # Third visit, all wrong: mean 1/4 of twelve rewards, variance 3/16; A_total = -1/sqrt(3), and A is a third of it.
    third = advantages(part, state, visit([[0, 0, 0, 0]], [7]))
    assert third.tolist() == pytest.approx([-1 / math.sqrt(3) / 3] * 4)


@pytest.mark.checks("oracle", "dcpo", by="the spread of all rewards so far")
def test_the_remembered_moments_are_those_of_all_rewards():
    part, state, earned = SmoothBaseline(ddof=0), SmoothBaseline().init(), []
    for step in range(5):
        batch = random_batch(seed=step, groups=2, samples=6)
        batch = batch.replace(task=torch.tensor([5, 3]).repeat_interleave(6))
        earned.append(batch.reward.view(2, 6))
        state = part.update(state, batch, {})
    everything = torch.cat(earned, 1)
    assert state["task"].tolist() == [3, 5] and state["visits"].tolist() == [5, 5]
    torch.testing.assert_close(state["mean"], everything.mean(1).flip(0))
    torch.testing.assert_close(state["std"], everything.std(1, correction=0).flip(0))


def test_the_smaller_mix_is_taken():
    part = SmoothBaseline(ddof=0)
    state = part.update(part.init(), visit([[1, 1, 1, 0]], [1]), {})
    state = part.update(state, visit([[1, 1, 1, 0]], [1]), {})
    batch = visit([[1, 0, 0, 0]], [1])
    now = (batch.reward - 0.25) / math.sqrt(3 / 16)
    ever = (batch.reward - 7 / 12) / math.sqrt(35 / 144)
    first, second = 2 / 3 * now + ever / 3, now / 3 + 2 / 3 * ever
    expected = torch.where(first.abs() < second.abs(), first, second)
    torch.testing.assert_close(advantages(part, state, batch), expected)
    assert (expected != first).any() and (expected != second).any(), "either mix is the smaller one somewhere"


def test_tasks_do_not_mix_and_a_reward_that_never_changed_stays_silent():
    part, state = SmoothBaseline(), SmoothBaseline().init()
    for _ in range(6):
        state = part.update(state, visit([[0.1] * 6, [1, 0, 1, 0, 1, 0]], [11, 4]), {})
    found = advantages(part, state, visit([[0.1] * 6, [0.0] * 6, [0.0] * 6], [11, 4, 99]))
    assert not found[:6].any(), "0.1 has no exact mean, and still nothing was ever earned but 0.1"
    assert (found[6:12] < 0).all() and not found[12:].any()


def test_groups_of_one_task_enter_as_one_visit_in_any_order():
    part = SmoothBaseline()
    batch = visit([[1, 0], [0, 0], [1, 1]], [8, 8, 2])
    ours = part.update(part.init(), batch, {})
    theirs = part.update(part.init(), batch.take_rows(torch.tensor([5, 2, 0, 4, 3, 1])), {})
    assert ours["task"].tolist() == [2, 8] and ours["visits"].tolist() == [1, 1] and ours["mean"].tolist() == [1.0, 0.25]
    for name, column in ours.items():
        torch.testing.assert_close(column, theirs[name])


def test_the_memory_goes_through_a_checkpoint(tmp_path: Path):
    part = SmoothBaseline()
    full = part.update(part.init(), visit([[1, 0, 0], [0, 1, 1]], [2**62 + 1, 5]), {})
    for state in (part.init(), full):
        save_state(tmp_path, "parts", state)
        back = load_state(tmp_path, "parts")
        assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    batch = visit([[0, 0, 0]], [2**62 + 1])
    assert torch.equal(advantages(part, back, batch), advantages(part, full, batch)) and advantages(part, back, batch).any()


def test_more_rows_have_a_signal_than_under_grpo():
    part, state, signal = SmoothBaseline(), SmoothBaseline().init(), []
    for step in range(8):
        reward = (torch.rand(6, 4, generator=torch.Generator().manual_seed(step)) < 0.2).double()
        batch = visit(reward.tolist(), list(range(6)))
        parent = GroupBaseline()(batch).sum(1)
        signal.append(((advantages(part, state, batch) != 0).double().mean(), (parent != 0).double().mean()))
        state = part.update(state, batch, {})
    ours, theirs = torch.tensor(signal).T
    assert ours[0] == theirs[0] and (ours >= theirs).all() and ours[4:].mean() > theirs[4:].mean() + 0.2


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="-1"):
        ProbabilityClip(low=-1.0)
    with pytest.raises(MethodError, match=r"most=0\.5"):
        ProbabilityClip(most=0.5)
