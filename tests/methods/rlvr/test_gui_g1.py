"""GUI-G1: difficulty weights, and the task whose answers are boxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch

from upslope.errors import MethodError, TaskError
from upslope.methods import find
from upslope.objective.weight.difficulty import DifficultyWeight
from upslope.tasks import list_tasks, load_task
from upslope.tasks.embedded import ALPHABET
from upslope.tasks.grounding import Grounding, closeness, hits, overlap, read_box
from upslope.tasks.text import SPLITS, Problem, Scores
from upslope.types import Batch

gui_g1, dr_grpo = find("gui-g1"), find("dr-grpo")


def difficult(batch: Batch, *difficulty: float) -> Batch:
    return batch.replace(components={**batch.components, "difficulty": torch.tensor(difficulty, dtype=torch.float32)})


# -- the method ------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "gui-g1")
def test_equal_or_unknown_difficulties_are_dr_grpo(ragged_batch: Batch):
    parent = dr_grpo.with_knobs({"aggregate.length": 64})
    assert_same(gradient(gui_g1, ragged_batch), gradient(parent, ragged_batch), exact=True)
    assert_same(gradient(gui_g1, difficult(ragged_batch, *[3.0] * 12)), gradient(parent, ragged_batch), exact=True)
    level = gui_g1.with_knobs({"weight.low": 1.0, "weight.high": 1.0})
    assert_same(gradient(level, difficult(ragged_batch, *range(12))), gradient(parent, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "gui-g1", by="hand-worked numbers")
def test_weights_by_hand():
    batch = difficult(random_batch(seed=0, groups=1, samples=4, ragged=False), 1.0, 2.0, 4.0, 9.0)
    # The mean is 4: a quarter, a half, one, nine quarters, clipped to [1/2, 2].
    assert DifficultyWeight()(batch)[:, 0].tolist() == [0.5, 0.5, 1.0, 2.0]
    assert DifficultyWeight(low=0.0, high=10.0)(batch)[:, 0].tolist() == [0.25, 0.5, 1.0, 2.25]
    plain = gradient(gui_g1, batch.replace(components={"task": batch.reward})).logp
    torch.testing.assert_close(gradient(gui_g1, batch).logp, plain * DifficultyWeight()(batch))


def test_rows_without_a_decision_are_not_in_the_mean():
    batch = difficult(random_batch(seed=0, groups=1, samples=4, empty_rows=1), 1.0, 100.0, 2.0, 3.0)
    assert DifficultyWeight()(batch)[:, 0].tolist() == [0.5, 2.0, 1.0, 1.5]


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="-1"):
        DifficultyWeight()(difficult(random_batch(seed=0, groups=1, samples=2), 1.0, -1.0))
    with pytest.raises(MethodError):
        DifficultyWeight(low=2.0)


# -- the task --------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "gui-g1", by="hand-worked numbers")
def test_reward_by_hand():
    """Target (2, 2, 6, 6) on a screen of 8."""
    target = (2, 2, 6, 6)
    exact, inside, shifted, apart = (2, 2, 6, 6), (3, 3, 5, 5), (4, 2, 8, 6), (0, 0, 1, 1)
    assert [overlap(box, target) for box in (exact, inside, shifted, apart)] == [1.0, 4 / 16, 8 / 24, 0.0]
    assert [hits(box, target) for box in (exact, inside, shifted, apart)] == [True, True, True, False]
    assert hits((5, 5, 7, 7), target) and not hits((5, 5, 8, 7), target), "the edge belongs to the target"
    assert closeness(exact, target, 8) == 1.0 and closeness(inside, target, 8) == pytest.approx(7 / 8)
    assert closeness(shifted, target, 8) == pytest.approx(4 / (2 + 2 / 0.75)) and closeness((0, 0, 8, 8), (8, 0, 9, 8), 8) == 0.0
    task = Grounding(size=8)
    problem = Problem("ga2244?a=", "2266", {"target": list(target)})
    scores = task.score([problem] * 4, ["2266", " 3355\n", "4286", "x"])
    closes = 4 / (2 + 2 / 0.75)
    assert scores.reward == pytest.approx([1.375, 1 + 0.25 / 4 + 0.125 * 7 / 8, 1 + 0.25 / 3 + 0.125 * closes, 0.0])
    assert scores.correct == [True, True, True, False]
    assert scores.components["growth"] == [1.0, 0.25, 1.0, 0.0] and scores.components["difficulty"] == [2.0] * 4


def test_references_are_right_and_fit():
    task = load_task("grounding:widgets=3,size=7")
    problems = task.sample(200, "train", np.random.default_rng(0))
    scores = task.score(problems, [problem.answer for problem in problems])
    assert isinstance(scores, Scores) and all(scores.correct) and scores.reward == pytest.approx([1.375] * 200)
    for problem in problems:
        assert set(problem.prompt + problem.answer) <= set(ALPHABET) and len(problem.answer) == 4 <= task.max_tokens
        assert max(map(int, problem.answer)) <= 7 and read_box(problem.answer) == tuple(problem.info["target"])
    for spoilt in ("", "123", "12345", "5511", "a123", "1 2 3"):
        assert task.score(problems[:1], [spoilt]).reward == [0.0]
    prompts = [{p.prompt for p in task.sample(100, split, np.random.default_rng(1))} for split in SPLITS]
    assert not prompts[0] & prompts[1] and not prompts[0] & prompts[2]
    assert len({problem.prompt for problem in problems}) > 150 and len(set(scores.components["difficulty"])) > 5


def test_its_rewards_are_knobs_and_it_is_listed():
    only = load_task("grounding:hit=0,iou=1,box=0")
    problem = only.sample(1, "train", np.random.default_rng(0))
    assert only.name == "grounding:hit=0,iou=1,box=0" and only.score(problem, [problem[0].answer]).reward == [1.0]
    assert load_task("grounding").describe() == next(info.description for info in list_tasks() if info.name == "grounding")
    for bad in ("grounding:size=12", "grounding:hit=-1", "grounding:colour=2"):
        with pytest.raises(TaskError):
            load_task(bad)
