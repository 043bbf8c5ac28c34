"""SPO: a success rate per task that forgets as the policy moves, and answers without groups."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from batches import assert_same, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline, RawReward
from upslope.objective.advantage.remembered import MemoryBaseline
from upslope.objective.base import State
from upslope.objective.curriculum import ByUncertainty
from upslope.objective.data.last_response import LastResponse
from upslope.objective.memory import SuccessTracker
from upslope.objective.shape.rows import WhitenRows
from upslope.runtime.files import load_state, save_state
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.text import Problem, Scores
from upslope.types import Batch, Offer, Trajectories

spo, grpo = find("spo-single-stream"), find("grpo")
SIZES = Settings(tasks_per_step=4, samples_per_task=1, warm_start=0.0, eval_problems=4, max_tokens=5, steps=10, lr=1e-3, warmup=0)


def visit(rewards: list[float], tasks: list[int], drift: list[float] | None = None) -> Batch:
    """One answer to each of these tasks."""
    batch = random_batch(seed=0, groups=len(rewards), samples=1)
    moved = torch.tensor(drift or [0.0] * len(rewards), dtype=torch.float64).unsqueeze(1).expand(batch.sampled.shape)
    return batch.replace(
        reward=torch.tensor(rewards, dtype=torch.float64),
        task=torch.tensor(tasks),
        signal={} if drift is None else {"drift": moved},
    )


def after(tracker: SuccessTracker, *visits: Batch) -> State:
    state = tracker.init()
    for batch in visits:
        state = tracker.update(state, batch, {})
    return state


def rate(tracker: SuccessTracker, state: State, *tasks: int) -> list[float]:
    return tracker.recall(state, torch.tensor(tasks)).tolist()


# -- the memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "spo-single-stream")
def test_without_forgetting_it_is_the_running_mean_with_jeffreys_prior():
    tracker = SuccessTracker(low=1.0, high=1.0)
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.5]
    state = after(tracker, *(visit([reward], [7], [3.0]) for reward in rewards))
    assert rate(tracker, state, 7) == pytest.approx([(sum(rewards) + 0.5) / (len(rewards) + 1)])
    together = after(tracker, visit(rewards, [7] * 6))
    assert rate(tracker, together, 7) == rate(tracker, state, 7), "six answers of one step count as six steps of one answer"


@pytest.mark.checks("oracle", "spo-single-stream", by="hand-worked numbers")
def test_it_forgets_by_how_far_the_policy_moved():
    tracker = SuccessTracker()
    # The first answer: 0.96 * 0.5 + 1 and 0.96 * 0.5. At half a half-life rho = 2^-0.5 = 0.707, below 0.875; at a tenth 0.933.
    state = after(tracker, visit([1.0], [3]))
    assert (state["success"].item(), state["failure"].item()) == pytest.approx((1.48, 0.48))
    for drift, kept in ((0.03, 0.875), (0.006, 2**-0.1), (0.001, 0.96), (0.0, 0.96), (50.0, 0.875)):
        moved = tracker.update(state, visit([0.0], [3], [drift]), {})
        assert (moved["success"].item(), moved["failure"].item()) == pytest.approx((kept * 1.48, kept * 0.48 + 1))
    assert rate(tracker, state, 3, 99) == pytest.approx([1.48 / 1.96, 0.5])


@pytest.mark.checks("oracle", "spo-single-stream", by="closed form of the paper")
def test_a_first_visit_of_many_answers_is_the_offline_estimate():
    tracker = SuccessTracker()
    first = visit([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [5] * 8)
    state = after(tracker, first)
    # N_init = 1 / (1 - 0.875) = 8; a = 8 * (3 + 0.5) / 9, b = 8 * (5 + 0.5) / 9.
    assert (state["success"].item(), state["failure"].item()) == pytest.approx((8 * 3.5 / 9, 8 * 5.5 / 9))
    again = tracker.update(state, first, {})
    assert again["success"].item() == pytest.approx(0.96 * 8 * 3.5 / 9 + 3), "only the first visit"
    plain = SuccessTracker(offline=0)
    assert after(plain, first)["success"].item() == pytest.approx(0.48 + 3)


def test_tasks_do_not_mix_and_the_order_of_rows_does_not_matter():
    tracker = SuccessTracker()
    batch = visit([1.0, 0.0, 0.25, 1.0], [9, 2, 9, 4], [0.0, 0.1, 0.01, 0.02])
    one, other = after(tracker, batch), after(tracker, batch.take_rows(torch.tensor([3, 0, 2, 1])))
    assert one["task"].tolist() == [2, 4, 9]
    assert all(torch.allclose(one[name], other[name]) for name in one)
    alone = after(tracker, visit([0.0], [2], [0.1]))
    assert rate(tracker, one, 2) == rate(tracker, alone, 2)


def test_the_memory_goes_through_a_checkpoint(tmp_path: Path):
    tracker = SuccessTracker()
    full = after(tracker, visit([1.0, 0.0], [2**62 + 1, 5]))
    for state in (tracker.init(), full):
        save_state(tmp_path, "parts", state)
        back = load_state(tmp_path, "parts")
        assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert rate(tracker, back, 2**62 + 1) == rate(tracker, full, 2**62 + 1)


def drifting(tracker: SuccessTracker, seed: int) -> tuple[float, float]:
    """Mean |v - p| at rest and while the success rate of 256 tasks moves by a logit of 4 within 20 visits."""
    random = torch.Generator().manual_seed(seed)
    tasks, state, errors = torch.arange(256), tracker.init(), []
    logit = torch.randn(256, generator=random, dtype=torch.float64) - 2.0
    for step in range(75):
        moving = 50 <= step < 70
        logit = logit + 0.2 * moving
        chance = logit.sigmoid()
        errors.append((tracker.recall(state, tasks) - chance).abs().mean())
        reward = (torch.rand(256, generator=random, dtype=torch.float64) < chance).double()
        # An answer's log-probability moves by about what the logit does, less where it is sure.
        drift = 0.2 * moving * (1 - torch.where(reward > 0, chance, 1 - chance))
        state = tracker.update(state, visit(reward.tolist(), tasks.tolist(), drift.tolist()), {})
    return float(torch.stack(errors[30:50]).mean()), float(torch.stack(errors[55:]).mean())


@pytest.mark.slow
def test_it_is_as_steady_as_the_slowest_memory_at_rest_and_nearly_as_quick_as_the_fastest_when_the_policy_moves():
    for seed in range(3):
        rest, moving = drifting(SuccessTracker(), seed)
        slow_rest, slow_moving = drifting(SuccessTracker(low=0.96, high=0.96), seed)
        fast_rest, fast_moving = drifting(SuccessTracker(low=0.875, high=0.875), seed)
        assert rest == pytest.approx(slow_rest, rel=1e-6) and rest < 0.75 * fast_rest
        assert moving < slow_moving - 0.5 * (slow_moving - fast_moving)


# -- the advantage ---------------------------------------------------------------------------------------------------------


def advantages(batch: Batch, state: State, tracker: SuccessTracker) -> Tensor:
    bound = batch.replace(state={tracker: state}, memory={"success": tracker})
    return MemoryBaseline()(bound).sum(1) / batch.lengths()


@pytest.mark.checks("oracle", "spo-single-stream", by="hand-worked numbers")
def test_one_answer_to_a_nearly_solved_task_still_teaches():
    tracker = SuccessTracker(low=1.0, high=1.0)
    state = after(tracker, *(visit([1.0, 0.0], [1, 2]) for _ in range(7)))
    batch = visit([1.0, 0.0, 1.0, 0.0], [1, 1, 2, 2])
    # 7 successes: 7.5 / 8 = 15/16. Failures: 1/16.
    assert advantages(batch, state, tracker).tolist() == pytest.approx([1 / 16, -15 / 16, 15 / 16, -1 / 16])
    group = batch.replace(reward=torch.ones(4, dtype=torch.float64), group=torch.zeros(4, dtype=torch.int64))
    assert not GroupBaseline()(group).any(), "grpo learns nothing from a group that is always right"
    assert advantages(group, state, tracker)[0] > 0


def test_whitening_counts_answers_not_tokens():
    batch = random_batch(seed=3, groups=3, samples=4, empty_rows=1)
    value = torch.arange(12, dtype=torch.float64)
    found = WhitenRows()(batch.replace(advantage=batch.per_decision(value)))
    there = batch.lengths() > 0
    expected = (value - value[there].mean()) / (value[there].std() + 1e-8)
    torch.testing.assert_close(found, batch.per_decision(expected))
    flat = batch.replace(advantage=batch.per_decision(torch.full((12,), 0.1, dtype=torch.float64)))
    assert not WhitenRows()(flat).any(), "equal advantages are exactly no signal, whatever the lengths"
    one = batch.take_rows(torch.tensor([0, 1]))
    assert torch.equal(WhitenRows()(one.replace(advantage=one.sampled)), one.sampled), "one row with decisions stays as it is"


@pytest.mark.checks("identity", "spo-single-stream")
def test_with_its_parts_taken_back_it_is_grpo():
    batch = random_batch(seed=2)
    slots = ("curriculum", "data", "advantage", "shape", "surrogate", "aggregate", "regularize", "memory")
    reverted = spo.derive(**{slot: getattr(grpo, slot) for slot in slots})
    assert_same(gradient(reverted, batch), gradient(grpo, batch), exact=True)
    # A task never seen has 1/2: before whitening that is reward minus a constant.
    plain = spo.derive(advantage=RawReward())
    assert_same(gradient(spo, batch), gradient(plain, batch))


# -- which tasks next ------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "spo-single-stream", by="closed form")
def test_weights_of_the_curriculum():
    found = torch.tensor([0.5, 0.0, 1.0, 0.1])
    offer = Offer(torch.arange(4), torch.zeros(4), torch.zeros(4), torch.full((4,), 0.5), 4, recall=lambda name: found)
    order = ByUncertainty()(offer)
    assert order.chosen.tolist() == [0, 3, 1, 2], "with equal luck by weight alone, of equal ones those offered first"
    assert order.why["weight"].tolist() == pytest.approx([0.55, 0.35, 0.05, 0.05])


# -- drift on kept answers -------------------------------------------------------------------------------------------------


def letters(problems: list[Problem], responses: list[str]) -> Scores:
    """Pays for letters, so that an untrained model earns something."""
    reward = [sum(map(str.isalpha, response)) / 5 for response in responses]
    return Scores(reward, [False] * len(reward))


def learner(settings: Settings = SIZES, **knobs) -> PolicyGradient:
    bench = set_up(spo.with_knobs(knobs), "pairs:largest=20", "tiny:layers=1,width=32", settings)
    object.__setattr__(bench.task, "score", letters)
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())


def kept_tasks(made: PolicyGradient) -> list[int]:
    return [task for packed in made.states["data.0"]["steps"] for task in packed["task"].tolist()]


def test_drift_is_that_of_the_kept_answer():
    made = learner()
    seen: dict[int, Trajectories] = {}
    measured = 0
    for step in range(1, 9):
        before = dict(seen)
        policy = made.policy.frozen_copy()
        made.step(step)
        rows = made.last
        assert rows is not None
        for row, task in enumerate(rows.task.tolist()):
            drift = rows.signal["drift"][row]
            assert (drift == drift[0]).all()
            if task in before:
                kept = before[task]
                now = policy.evaluate(kept).logp
                expected = float(((now - kept.behavior.logp).abs() * kept.sampled).sum() / kept.sampled.sum())
                assert float(drift[0]) == pytest.approx(expected, abs=1e-5)
                measured += expected > 1e-3
            else:
                assert drift[0] == 0
            seen[task] = rows.take_rows(torch.tensor([row]))
        assert sorted(kept_tasks(made)) == sorted(seen), "one answer for each task"
    assert measured > 3, "tasks came back and the policy had moved"


def test_what_is_kept_is_bounded_and_the_oldest_go_first():
    made = learner(**{"data.keep": 5})
    order: list[int] = []
    for step in range(1, 6):
        made.step(step)
        fresh = made.last.task.tolist()
        order = [task for task in order if task not in fresh] + fresh
        assert kept_tasks(made) == order[-5:]
    assert not learner(**{"data.keep": 0}).step(1).get("empty_updates")


def test_kept_answers_go_through_a_checkpoint(tmp_path: Path):
    made = learner(dataclasses.replace(SIZES, samples_per_task=3))
    for step in (1, 2, 3):
        made.step(step)
    save_state(tmp_path, "learner", made.state())
    weights, other = made.policy.weights(), learner(dataclasses.replace(SIZES, samples_per_task=3))
    other.policy.load_weights({name: tensor.clone() for name, tensor in weights.items()})
    other.load_state(load_state(tmp_path, "learner"))
    assert made.step(4)["reward"] == other.step(4)["reward"]
    assert torch.equal(made.last.signal["drift"], other.last.signal["drift"]) and made.last.signal["drift"].any()
    assert all(torch.equal(tensor, other.policy.weights()[name]) for name, tensor in made.policy.weights().items())


def test_a_single_stream_learns_from_every_answer():
    told = learner().step(1)
    assert told["learning"] > 0.5 and math.isfinite(told["loss"]), "groups of one would be silent under grpo"


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        (SuccessTracker, {"low": 0.97}, "0.97"),
        (SuccessTracker, {"half": 0.0}, "half=0"),
        (SuccessTracker, {"prior": -1.0}, "-1"),
        (ByUncertainty, {"candidates": 0}, "candidates=0"),
        (ByUncertainty, {"floor": -0.5}, "-0.5"),
        (LastResponse, {"keep": -3}, "-3"),
    ],
)
def test_nonsense_is_refused(part, wrong, said):
    with pytest.raises(MethodError, match=said):
        part(**wrong)


def test_a_memory_that_is_not_there_is_refused():
    with pytest.raises(MethodError, match="success"):
        gradient(spo.derive(memory=None), random_batch(seed=1))
