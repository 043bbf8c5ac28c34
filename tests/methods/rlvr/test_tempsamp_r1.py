"""TempSamp-R1: the bent reward, the reference in the group, and the time line it is tried on."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner

from upslope.errors import MethodError, TaskError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.anchored import AnchoredBaseline
from upslope.objective.reward.soft import SoftReward
from upslope.tasks import load_task
from upslope.tasks.interval import overlap, read_interval
from upslope.types import Batch, Source

tempsamp, anchored, grpo = find("tempsamp-r1"), find("tempsamp-r1-anchor"), find("grpo")
SETTINGS = dataclasses.replace(SIZES, lr=3e-3)


def group(*rewards: float) -> Batch:
    """One group of these rewards; the last row is the reference."""
    batch = random_batch(seed=0, groups=1, samples=len(rewards))
    source = torch.zeros(len(rewards), dtype=torch.int64)
    source[-1] = int(Source.DEMONSTRATED)
    return batch.replace(reward=torch.tensor(rewards, dtype=torch.float64), label={"source": source})


def rows_of(advantage: torch.Tensor) -> list[float]:
    return [float(row[row != 0][0]) if row.any() else 0.0 for row in advantage]


@pytest.mark.checks("oracle", "tempsamp-r1", by="hand-worked numbers")
def test_the_bent_reward_by_hand():
    found = SoftReward().transform(torch.tensor([0.0, 0.3, 0.8, 1.0], dtype=torch.float64))
    # (e^0.8 - 1)/(e - 1) = 0.71324, (e^0.5 - 1)/(e - 1) = 0.37754, ln 1.2 = 0.18232
    assert found.tolist() == pytest.approx([0.8 - 0.71324, 0.8 - 0.37754, 0.8, 0.8 + 0.0018232], abs=1e-5)


def test_the_bent_reward_is_continuous_and_increasing():
    grid = torch.linspace(-0.5, 1.5, 2001, dtype=torch.float64)
    found = SoftReward().transform(grid)
    assert (found.diff() > 0).all() and found.diff().max() < 3e-3
    ends = SoftReward().transform(torch.tensor([0.8 - 1e-12, 0.8], dtype=torch.float64))
    assert ends.diff().abs() < 1e-11
    equal = SoftReward().transform(torch.full((37,), 0.1))
    assert (equal == equal[0]).all(), "a group without signal stays one"


@pytest.mark.checks("oracle", "tempsamp-r1", by="hand-worked numbers")
def test_a_perfect_reference_no_longer_makes_every_sample_look_bad():
    """0.2, 0.2, 0.45 and a reference of 1: mean 0.4625. Bent: 0.3215, 0.3215, 0.5561, 0.8018, mean 0.5002."""
    batch = group(0.2, 0.2, 0.45, 1.0)
    raw = rows_of(GroupBaseline()(batch))
    soft = rows_of(GroupBaseline()(SoftReward()(batch)))
    assert max(raw[:3]) < 0 < soft[2] < soft[3] and max(soft[:2]) < 0
    # It is no cure for all groups: where the best sample is itself poor, it stays below the mean.
    assert max(rows_of(GroupBaseline()(SoftReward()(group(0.1, 0.2, 0.3, 1.0))))[:3]) < 0


@pytest.mark.checks("identity", "tempsamp-r1", "tempsamp-r1-anchor")
def test_without_references_and_bending_it_is_grpo(ragged_batch: Batch):
    assert_same(gradient(tempsamp.derive(data=None, reward=None), ragged_batch), gradient(grpo, ragged_batch), exact=True)
    assert_same(gradient(anchored.derive(data=None), ragged_batch), gradient(grpo, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "tempsamp-r1-anchor", by="hand-worked numbers")
def test_the_anchored_reference_by_hand():
    """Samples 0 and 1: mean 0.5, spread sqrt(0.5), advantages -+0.7071; the reference 1.2 times the better one."""
    found = rows_of(AnchoredBaseline(eps=0.0)(group(0.0, 1.0, 5.0)))
    assert found == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 1.2 * math.sqrt(0.5)])
    assert rows_of(AnchoredBaseline(anchor=0.0, eps=0.0)(group(0.0, 1.0, 5.0)))[2] == 0
    assert not AnchoredBaseline()(group(0.3, 0.3, 1.0)).any(), "samples without signal give the reference none"
    lonely = group(0.3, 0.3, 1.0).take_rows(torch.tensor([2]))
    assert not AnchoredBaseline()(lonely).any()


def test_the_reference_joins_its_group():
    made = learner(tempsamp, SETTINGS)
    told = made.step(1)
    rows = made.last
    taught = rows.label["source"] == Source.DEMONSTRATED
    assert taught.tolist() == [False] * 16 + [True] * 4
    assert rows.group_stats(rows.reward).size.tolist() == [5.0] * 20
    assert rows.behavior.logp[taught][rows.sampled[taught] > 0].isnan().all() or not rows.behavior.logp[taught].any()
    for row in taught.nonzero().squeeze(1).tolist():
        said = made.policy.decode(rows.action[row][rows.sampled[row] > 0])
        problem = made.rollout.asked[int(rows.task[row])]
        assert said == problem.answer == rows.info[row]["response"] and rows.info[row]["finish"] == "reference"
    # Scored as the samples are, the method's own transform included.
    torch.testing.assert_close(rows.reward, tempsamp.reward[0].transform(rows.components["task"]))
    assert len(rows.info) == rows.rows and rows.ended is not None and "answer" in rows.label and "item" in rows.segment
    named = rows.key[rows.sampled > 0]
    assert len(named.unique()) == len(named)
    # What is told of the step is told of what was sampled.
    assert told["reward"] == pytest.approx(float(rows.components["task"][~taught].mean())) and told["log_ratio"] == 0


def test_the_distance_to_the_start_is_that_of_the_samples():
    from upslope.objective.regularize import kl_estimate

    made = learner(tempsamp, SETTINGS)
    made.step(1)
    told, rows = made.step(2), made.last
    own = rows.take_rows(rows.fresh())
    kl = (kl_estimate(own.behavior.logp, own.reference["start"].logp, "k3") * own.sampled).sum() / own.sampled.sum()
    assert told["kl_start"] == pytest.approx(float(kl)) and kl > 1e-5


def test_a_task_without_answers_is_refused():
    from upslope.errors import UserError
    from upslope.tasks.text import Problem

    made = learner(tempsamp, SETTINGS)
    plain = made.rollout.task.sample
    made.rollout.task.sample = lambda *a: [Problem(problem.prompt) for problem in plain(*a)]
    with pytest.raises(UserError, match="learns from reference answers"):
        made.step(1)


# -- the time line ---------------------------------------------------------------------------------------------------------


def test_overlaps_by_hand():
    assert [read_interval(text) for text in ("0205", "0502", "0202", "205", "02,5", "٠٢٠٥")] == [
        (2, 5),
        None,
        None,
        None,
        None,
        None,
    ]
    assert overlap((2, 5), (2, 5)) == 1.0 and overlap(None, (2, 5)) == 0.0
    assert overlap((0, 4), (2, 6)) == pytest.approx(2 / 6) and overlap((0, 2), (2, 6)) == 0.0


@pytest.mark.parametrize("spec", ["interval", "interval:length=40,events=5", "interval:events=1,length=9"])
def test_time_lines_say_when_the_letter_is_there(spec: str):
    task = load_task(spec)
    seen = {split: task.sample(20, split, np.random.default_rng(0)) for split in ("train", "test")}
    assert not {p.prompt for p in seen["train"]} & {p.prompt for p in seen["test"]}
    for problem in seen["train"]:
        line, letter = problem.prompt[1:].split("?")
        begin, end = problem.info["target"]
        assert {place for place, symbol in enumerate(line) if symbol == letter[0]} == set(range(begin, end))
        assert len(line) == task.length and len(set(line)) == task.events
    scores = task.score(seen["train"], [problem.answer for problem in seen["train"]])
    assert scores.reward == [1.0] * 20 and all(scores.correct)
    assert task.score(seen["train"][:1], ["nonsense"]).reward == [0.0] and load_task(task.name) == task


@pytest.mark.parametrize("wrong", ["events=9,length=4", "right=0", "length=1", "right=true"])
def test_time_lines_that_cannot_be_are_refused(wrong: str):
    with pytest.raises(TaskError, match="interval"):
        load_task(f"interval:{wrong}")


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="SoftReward"):
        SoftReward(steep=0.0)
    with pytest.raises(MethodError, match="AnchoredBaseline"):
        AnchoredBaseline(anchor=-1.0)
