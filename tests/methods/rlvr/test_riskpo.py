"""RiskPO: bundles, quantiles that follow, and the slopes of the risk."""

from __future__ import annotations

import math

import pytest
import torch
from batches import random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.bundles import BundleRisk
from upslope.types import Batch

riskpo = find("riskpo")
FRESH = {"steps": 0, "low": 0.0, "high": 0.0}


def rewarded(rewards: list[list[float]], seed: int = 0) -> Batch:
    batch = random_batch(seed, groups=len(rewards), samples=len(rewards[0]))
    return batch.replace(reward=torch.tensor(rewards, dtype=torch.float64).flatten())


def advantages(part: BundleRisk, batch: Batch, state: dict | None = None) -> Tensor:
    return part(batch.replace(state={part: state or FRESH})).sum(1) / batch.lengths()


@pytest.mark.checks("oracle", "riskpo", by="closed forms")
def test_slopes_of_the_risk():
    part = BundleRisk(low=0.2, high=0.9, weight=1.5)
    score = torch.tensor([0.5, 2.5, 4.5], dtype=torch.float64, requires_grad=True)  # below, between and above 1 and 4
    (slope,) = torch.autograd.grad(part.risk(score, 1.0, 4.0).sum(), score)
    assert slope.tolist() == pytest.approx([1.5 / (0.2 * 2.5), 1 / (0.7 * 2.5), 0.0])
    assert slope.tolist() == pytest.approx([3.0, 0.571, 0.0], abs=5e-4)
    seeking = BundleRisk(low=0.2, high=0.9, weight=1.5, tail="upper")
    (slope,) = torch.autograd.grad(seeking.risk(score, 1.0, 4.0).sum(), score)
    assert slope.tolist() == pytest.approx([0.0, 1 / (0.7 * 2.5), 1.5 / (0.1 * 2.5)])


@pytest.mark.checks("identity", "riskpo")
def test_without_tails_it_is_affine_in_the_score():
    whole = BundleRisk(low=0.0, high=1.0, weight=0.0, questions=1, quantiles="batch", credit="uniform", normalise=False)
    batch = random_batch(seed=1, groups=3, samples=4)
    best = torch.full((3,), -math.inf).double().scatter_reduce(0, (batch.group - 5) // 3, batch.reward, "amax")
    torch.testing.assert_close(advantages(whole, batch), batch.reward - best.repeat_interleave(4))
    # Between quantiles that enclose all scores, differences of A are differences of S: the mean objective.
    state = {"steps": 3, "low": -50.0, "high": 50.0}
    tracked = BundleRisk(low=0.0, high=1.0, weight=0.0, questions=2, credit="uniform", normalise=False)
    papers = tracked.papers(batch)
    found = advantages(tracked, batch, state)
    scores = papers.rows(papers.score)
    torch.testing.assert_close(found - found[0], scores - scores[0])


@pytest.mark.checks("oracle", "riskpo", by="hand-worked numbers")
def test_two_questions_two_papers():
    # Scores per paper lie in {0, 1, 2}; tracked quantiles 0.5 and 1.5, levels 0.2 and 0.9, w = 1.5.
    part, state = BundleRisk(questions=2, credit="uniform"), {"steps": 1, "low": 0.5, "high": 1.5}
    batch = rewarded([[1, 0], [1, 1]])
    papers = part.papers(batch)
    assert sorted(papers.score.flatten().tolist()) == [1.0, 2.0], "each paper has one answer to each question"
    # S = 2: g = (1.5 - 0.5 - 1) / 0.7 = 0. S = 1: g = (0.5 - 0 - 1) / 0.7. Divided by 2.5 and by std {1, 2} = sqrt(1/2).
    one = torch.tensor((0.5 - 1) / 0.7 / 2.5 / (math.sqrt(0.5) + 1e-6), dtype=torch.float64)
    expected = torch.where(papers.rows(papers.score) == 2, 0.0, one)
    torch.testing.assert_close(advantages(part, batch, state), expected)
    # By spread: the first question's is sqrt(1/2), the second's is flat and counts as one.
    by_spread = advantages(BundleRisk(questions=2), batch, state)
    spread = torch.tensor([math.sqrt(0.5)] * 2 + [1.0] * 2).double() + 1e-6
    torch.testing.assert_close(by_spread, expected / spread)
    # In proportion to reward minus mean: all of it to the first question, whose answers differ.
    shared = advantages(BundleRisk(questions=2, credit="sum-mean"), batch, state)
    torch.testing.assert_close(shared, expected * torch.tensor([1.0, 1.0, 0.0, 0.0]).double())


def test_a_low_score_pays_for_the_tail():
    part, state = BundleRisk(questions=1, credit="uniform", normalise=False), {"steps": 1, "low": 0.5, "high": 1.5}
    # S = 0: g = (0 - 0 - 1) / 0.7, c = -0.5 / 0.2. S = 1: g = (0.5 - 1) / 0.7.
    expected = [(1.5 * -2.5 - 1 / 0.7) / 2.5, -0.5 / 0.7 / 2.5]
    assert advantages(part, rewarded([[0, 1]]), state).tolist() == pytest.approx(expected)
    lifted = BundleRisk(questions=1, credit="uniform", normalise=False, shifted=False)
    assert advantages(lifted, rewarded([[0, 1]]), state).tolist() == pytest.approx([-1.5, 0.5 / 0.7 / 2.5])


@pytest.mark.checks("oracle", "riskpo", by="quantiles of a stationary score")
def test_the_tracker_finds_the_quantiles():
    part, state = BundleRisk(low=0.2, high=0.9, questions=1), FRESH
    random, batch = torch.Generator().manual_seed(0), random_batch(seed=0, groups=4, samples=16)
    for step in range(600):
        scale = 2.0 if step == 0 else 1.0  # the first guess is far off
        batch = batch.replace(reward=scale * torch.randn(64, generator=random, dtype=torch.float64))
        state = part.update(state, batch, {})
        if step == 0:
            assert state["low"] == pytest.approx(batch.reward.quantile(0.2).item())
            assert state["high"] > 2.0
    normal = torch.distributions.Normal(0.0, 1.0)
    assert state["low"] == pytest.approx(normal.icdf(torch.tensor(0.2)).item(), abs=0.1)
    assert state["high"] == pytest.approx(normal.icdf(torch.tensor(0.9)).item(), abs=0.1)


def test_the_first_step_takes_the_bundles_own_quantiles():
    part = BundleRisk(questions=1, credit="uniform", normalise=False)
    batch = rewarded([[0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 11.0, 12.0, 13.0, 14.0]])
    found = advantages(part, batch)
    torch.testing.assert_close(found[:5], found[5:])
    assert torch.equal(found, advantages(BundleRisk(questions=1, credit="uniform", normalise=False, quantiles="batch"), batch))
    # Quantiles of 0..4 at 0.2 and 0.9 are 0.8 and 3.6; score 4 lies above both: g = (3.2 - 0.4 - 2.8) / 0.7 = 0.
    assert found[4].item() == pytest.approx(0.0, abs=1e-12)
    state = {"steps": 1, "low": 2.8, "high": 5.6}
    mixed, half = (advantages(BundleRisk(questions=1, credit="uniform", normalise=False, quantiles=q), batch, s)
                   for q, s in (("mix", state), ("track", {"steps": 1, "low": 1.8, "high": 4.6})))  # fmt: skip
    torch.testing.assert_close(mixed[:5], half[:5])


def test_bundles_hold_each_question_once_and_do_not_depend_on_order():
    part = BundleRisk(questions=2)
    batch = random_batch(seed=3, groups=5, samples=4)
    papers = part.papers(batch)
    assert papers.questions.tolist() == [2, 2, 1]
    for bundle in range(3):
        for number in range(4):
            rows = (papers.bundle == bundle) & (papers.number == number)
            assert rows.sum() == papers.questions[bundle] and batch.group[rows].unique().numel() == rows.sum()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    shuffled = part.papers(batch.take_rows(order))
    assert torch.equal(shuffled.bundle, papers.bundle[order]) and torch.equal(shuffled.number, papers.number[order])
    again = part.papers(batch.replace(key=batch.key + 12345))
    assert not torch.equal(again.bundle, papers.bundle) or not torch.equal(again.number, papers.number)


def test_groups_of_unequal_size_make_as_many_papers_as_the_smallest():
    batch = rewarded([[1, 1, 1, 0], [1, 0, 1, 0]]).take_rows(torch.tensor([0, 1, 2, 3, 4, 5]))
    part = BundleRisk(questions=2, credit="uniform")
    papers = part.papers(batch)
    assert papers.used.tolist().count(False) == 2 and papers.score.isnan().sum() == 2
    assert not advantages(part, batch)[~papers.used].any()


def test_a_bundle_short_of_questions_is_scaled_up():
    papers = BundleRisk(questions=4).papers(rewarded([[1, 1], [1, 0]]))
    assert sorted(papers.score.flatten().tolist()) == [2.0, 4.0]


def test_the_tracker_is_only_numbers_and_moves_once_a_step():
    part = BundleRisk(questions=1)
    state = part.update(part.init(), rewarded([[0.0, 1.0, 2.0, 3.0, 4.0]]), {})
    assert state == {"steps": 1, "low": pytest.approx(0.8), "high": pytest.approx(3.6)}
    # Three of five lie below 2.5, none below -1: each quantile moves by 0.1 (level - share).
    state = part.update({"steps": 1, "low": -1.0, "high": 2.5}, rewarded([[0.0, 1.0, 2.0, 3.0, 4.0]]), {})
    assert state == {"steps": 2, "low": pytest.approx(-1 + 0.1 * 0.2), "high": pytest.approx(2.5 + 0.1 * 0.3)}


@pytest.mark.parametrize("fields", [{"low": 0.9, "high": 0.2}, {"low": 0.0}, {"high": 1.0, "tail": "upper"}, {"questions": 0}])
def test_nonsense_is_refused(fields: dict):
    with pytest.raises(MethodError, match="BundleRisk"):
        BundleRisk(**fields)
