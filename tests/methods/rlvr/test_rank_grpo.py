"""Rank-GRPO: rewards to go, ratios by item, the ends of lists, and how a task pays for items."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from small_learner import SIZES
from torch import Tensor

from upslope.errors import MethodError, TaskError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import catalogue, find
from upslope.objective.advantage.rank import RankBaseline
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.ratio import SequenceRatio, TokenRatio
from upslope.objective.ratio.segment import SegmentRatio
from upslope.rollout.text_rows import item_numbers, pay_items
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.testing.batches import with_needs
from upslope.types import Batch, Ended, View

rank, gspo = find("rank-grpo"), find("gspo")
plain = rank.derive(regularize=None)


def with_items(batch: Batch, item: Tensor) -> Batch:
    return batch.replace(segment={"item": item.expand_as(batch.sampled).clone()})


@pytest.mark.checks("identity", "rank-grpo")
@pytest.mark.parametrize("gradient_of", ["token", "segment"])
def test_one_item_is_gspo(ragged_batch: Batch, gradient_of: str):
    batch = with_items(ragged_batch, torch.zeros(8, dtype=torch.int64)).replace(step_reward=None)
    ours = plain.with_knobs({"advantage.eps": 1e-6, "ratio.gradient": gradient_of})
    theirs = gspo.derive(surrogate=rank.surrogate, ratio=SequenceRatio("token" if gradient_of == "token" else "sequence"))
    assert_same(gradient(ours, batch), gradient(theirs, batch))


@pytest.mark.checks("identity", "rank-grpo")
def test_items_of_one_decision_have_the_token_ratio(ragged_batch: Batch):
    batch = with_items(ragged_batch, torch.arange(8))
    assert_same(gradient(plain, batch), gradient(plain.derive(ratio=TokenRatio()), batch))


@pytest.mark.checks("identity", "rank-grpo")
def test_what_came_before_an_item_does_not_change_its_advantage(ragged_batch: Batch):
    before, part = RankBaseline()(ragged_batch), RankBaseline()
    changed = ragged_batch.step_reward.clone()
    changed[ragged_batch.segment["item"] == 0] += torch.randn(12, 1, dtype=torch.float64).expand(12, 3).flatten()
    after = part(ragged_batch.replace(step_reward=changed))
    later = ragged_batch.segment["item"] > 0
    assert torch.allclose(before[later], after[later]) and not torch.allclose(before[~later], after[~later])


def lists(*hits: list[float], asked: int = 3, closed: bool = False) -> Batch:
    """One group of lists with one decision and a separator to each item, and an end behind; hits are paid at the separators."""
    width = 2 * max(map(len, hits)) + 1
    batch = random_batch(seed=0, groups=1, samples=len(hits), positions=width, ragged=False)
    lengths = torch.tensor([[2 * len(row) + 1] for row in hits])
    place = torch.arange(width)
    sampled = (place < lengths).double()
    ended = torch.where(place == lengths - 1, int(Ended.TERMINATED), 0).to(torch.int8)
    item = (place // 2).expand(len(hits), -1)
    if not closed:  # nothing separates the end from the last item
        item = torch.where(place == lengths - 1, item - 1, item)
    paid = torch.zeros_like(sampled)
    for row, each in enumerate(hits):
        paid[row, [2 * position + 1 for position in range(len(each))]] = torch.tensor(each, dtype=torch.float64)
    label = {"items": torch.full((len(hits),), asked)}
    return batch.replace(sampled=sampled, ended=ended, segment={"item": item.clone()}, step_reward=paid, label=label)


@pytest.mark.checks("oracle", "rank-grpo", by="hand-worked numbers")
def test_rewards_to_go_and_advantages_by_hand():
    """Hits 1 0 1 and 0 1 0, discounts 1, 0.63093, 0.5: to go 1.5, 0.5, 0.5 and 0.63093 twice, 0; of two, each is at -+1/sqrt 2."""
    batch = lists([1, 0, 1], [0, 1, 0])
    second = 1 / math.log2(3)
    expected = torch.tensor([[1.5, 0.5, 0.5], [second, second, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(RankBaseline().rank_rewards(batch), expected)
    assert RankBaseline(credit="own").rank_rewards(batch).tolist() == [[1, 0, 1], [0, 1, 0]]
    found = RankBaseline(eps=0.0)(batch)
    half = math.sqrt(0.5)
    assert found[0].tolist() == pytest.approx([half, half, -half, -half, half, half, 0.1])
    assert found[1].tolist() == pytest.approx([-half, -half, half, half, -half, -half, 0.1])
    same = RankBaseline(eps=0.0)(lists([1, 0, 1], [0, 0, 1]))
    assert not same[:, 2:6].any() and same[:, :2].all(), "from the second rank on both earn the same"


@pytest.mark.checks("oracle", "rank-grpo", by="hand-worked numbers")
@pytest.mark.parametrize(
    ("closed", "ending", "ends"),
    [
        # two, three and four items where three are asked for
        (False, "apart", [-0.1, 0.1, 0.0]),
        (True, "apart", [-0.1, 0.1, 0.0]),
        (False, "within", [-0.1, 0.1, -0.1]),
        (True, "within", [0.1, -0.1, -0.1]),  # the separator behind two items makes them three
    ],
)
def test_the_end_of_a_list_and_what_lies_beyond(closed: bool, ending: str, ends: list[float]):
    batch = lists([0, 0], [0, 0, 0], [0, 0, 0, 1], closed=closed)
    found = RankBaseline(ending=ending)(batch)  # no rank differs in hits: what is asked for is all that counts
    assert [found[row, 2 * row + 4].item() for row in range(3)] == pytest.approx(ends)
    assert found[2, 6:8].tolist() == [-0.1, -0.1] and not found[:2, :4].any() and not found[2, :6].any()
    cut = batch.replace(ended=torch.zeros_like(batch.ended))
    assert RankBaseline(ending="apart", overflow=0.0)(cut).abs().max() == 0, "a list that was cut off has no end to judge"


@pytest.mark.checks("oracle", "rank-grpo", by="the released loss, written out")
@pytest.mark.parametrize("closed", [False, True])
def test_the_released_ratio_by_item(closed: bool):
    batch = lists([0, 1], [0, 0, 1], [1, 0, 1, 1], closed=closed)
    ours = plain.with_knobs({"ratio.ending": "within", "ratio.gradient": "segment", "advantage.ending": "within"})
    update = begin_update(ours, annotate(ours, batch))
    losses, _ = decision_losses(ours, update)
    ratios = torch.zeros_like(batch.sampled)
    for row in range(3):
        difference = (batch.current.logp - batch.proximal.logp)[row]
        unit = [min(number, 3) for number in batch.segment["item"][row].tolist()]
        for position in range(int(batch.sampled[row].sum())):
            mates = [place for place in range(int(batch.sampled[row].sum())) if unit[place] == unit[position]]
            ratios[row, position] = difference[mates].mean().exp()
    gain = torch.minimum(ratios * update.advantage, ratios.clamp(0.94, 1.08) * update.advantage)
    expected = -((gain * batch.sampled).sum(1) / batch.sampled.sum(1)).mean()
    torch.testing.assert_close(losses.sum(), expected)


def test_the_end_apart_is_no_part_of_its_items_ratio():
    batch = lists([1, 0, 1], [0, 1, 0])
    moved = batch.current.logp.detach().clone()
    moved[:, 6] += 1.0
    ratios = [SegmentRatio(ending="apart")(batch.replace(current=View(logp)))[0].log for logp in (batch.current.logp, moved)]
    torch.testing.assert_close(ratios[0][:, :6], ratios[1][:, :6])
    torch.testing.assert_close(ratios[1][:, 6] - ratios[0][:, 6], torch.ones(2, dtype=torch.float64))
    within = [SegmentRatio(ending="within")(batch.replace(current=View(logp)))[0].log for logp in (batch.current.logp, moved)]
    torch.testing.assert_close(within[1][:, 4] - within[0][:, 4], torch.full((2,), 1 / 3, dtype=torch.float64))


PAID_BY_STEP = [name for name, method in catalogue().items() if "proximal.value" in method.needs()] + ["rank-grpo"]


@pytest.mark.parametrize(
    "name", [name for name, method in catalogue().items() if name not in PAID_BY_STEP and method.learner == "policy-gradient"]
)
def test_methods_that_read_no_items_are_not_changed_by_them(name: str):
    batch = with_needs(random_batch(seed=3), catalogue()[name])
    batch = batch.replace(label={**batch.label, "items": torch.full((12,), 2)})
    assert_same(gradient(catalogue()[name], batch), gradient(catalogue()[name], batch.replace(step_reward=None)), exact=True)


def test_a_batch_without_items_is_refused():
    with pytest.raises(MethodError, match="segment 'item'"):
        gradient(rank, random_batch(seed=0).replace(segment={}))


# -- how a task pays for items ---------------------------------------------------------------------------------------------


def bench(spec: str = "recommend:items=3,liked=3,letters=6"):
    return set_up(rank, spec, "tiny:layers=1,width=32", dataclasses.replace(SIZES, max_tokens=12))


def test_items_are_paid_at_their_last_token():
    made = bench()
    rows = collect(made.rollout, 1)
    texts = ["ab,xx,cd", "ab,", "a,b,c,ab"]
    ids = [[*made.policy.tokenizer(text, add_special_tokens=False).input_ids, min(made.policy.stop_ids)] for text in texts]
    tokens = torch.tensor([row + [made.policy.pad_id] * (12 - len(row)) for row in ids])
    sampled = torch.tensor([[1.0] * len(row) + [0.0] * (12 - len(row)) for row in ids])
    item = item_numbers(made.policy, tokens, ",")
    paid = pay_items(rows.replace(sampled=sampled, segment={"item": item}), [[1, 0, 2], [3, 0, 0], [0, 4, 5]])
    where = {(row, position): paid.step_reward[row, position].item() for row, position in paid.step_reward.nonzero().tolist()}
    assert where == {(0, 2): 1.0, (0, 8): 2.0, (1, 2): 3.0, (2, 3): 4.0, (2, 5): 5.0}
    assert paid.label["items"].tolist() == [3, 3, 3]
    assert pay_items(rows, []) is rows


def test_a_step_on_lists_learns_from_hits():
    made = bench("recommend:items=2,liked=2,letters=3")
    task = made.rollout.task
    rows = collect(made.rollout, 1)
    assert rows.step_reward is not None and rows.label["items"].tolist() == [2] * 16
    pay = dataclasses.replace
    # An untrained model never hits: pay for letters, so that ranks differ.
    made.rollout.task = type("Paid", (), {
        "sample": task.sample, "separator": ",", "answer_class": task.answer_class, "max_tokens": 8,
        "score": lambda self, problems, responses: pay(
            task.score(problems, responses), items=[[float(len(text) % 3), float(len(text) % 2)] for text in responses]
        ),
    })()  # fmt: skip
    learner = PolicyGradient(made.method, made.policy, made.rollout, made.settings, made.policy.frozen_copy())
    told = learner.step(1)
    assert told["grad_norm"] > 0 and told["learning"] > 0.5
    assert (learner.last.advantage.abs().sum(1) > 0).any()


@pytest.mark.parametrize("spec", ["recommend", "recommend:items=2,liked=5,letters=26"])
def test_lists_are_scored_rank_by_rank(spec: str):
    task = load_task(spec)
    seen = {split: task.sample(20, split, np.random.default_rng(0)) for split in ("train", "test")}
    assert not {p.prompt for p in seen["train"]} & {p.prompt for p in seen["test"]}
    scores = task.score(seen["train"], [problem.answer for problem in seen["train"]])
    assert scores.reward == pytest.approx([1.0] * 20) and all(scores.correct) and scores.items == [[1.0] * task.items] * 20
    assert load_task(task.name) == task and all(len(p.answer) == task.longest_answer() for p in seen["train"])


@pytest.mark.checks("oracle", "rank-grpo", by="hand-worked numbers")
def test_a_list_by_hand():
    task = load_task("recommend:items=3,liked=3,letters=6")
    problem = next(task.generate(1, np.random.default_rng(0)))
    right = problem.answer.split(",")
    said = ",".join([right[1], "zz", right[1]]), ",".join([*right, "zz"]), "", ",".join(right[:2])
    scores = task.score([problem] * 4, said)
    assert scores.items == [[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]  # a repetition is no hit
    whole = 1 + 1 / math.log2(3) + 0.5
    assert scores.reward == pytest.approx([1 / whole, 1.0, 0.0, (1 + 1 / math.log2(3)) / whole])
    assert scores.correct == [False] * 4, "one title too many is not right either"


@pytest.mark.parametrize("wrong", ["items=5,liked=4", "letters=3", "items=0"])
def test_lists_that_cannot_be_are_refused(wrong: str):
    with pytest.raises(TaskError, match="recommend"):
        load_task(f"recommend:{wrong}")
