"""TTRL and EVOL-RL: votes in place of labels, and novelty among them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from small_learner import SIZES, learner

from upslope.errors import MethodError
from upslope.methods import compose, find
from upslope.objective.estimator import score
from upslope.objective.filter import DropConstantGroups
from upslope.objective.filter.some_answers import SomeAnswers
from upslope.objective.reward import OverlongPenalty
from upslope.objective.reward.novelty import SemanticNovelty, relative_novelty
from upslope.objective.reward.vote import MajorityVote
from upslope.types import NO_ANSWER, Batch

ttrl, evol, grpo = find("ttrl"), find("evol-rl"), find("grpo")


def voting(*groups: list[int], paid: float = 0.0, embedding: torch.Tensor | None = None) -> Batch:
    """Groups of answers by class; the task pays all of them the same."""
    answers = torch.tensor([each for group in groups for each in group])
    number = torch.tensor([place for place, group in enumerate(groups) for _ in group])
    batch = random_batch(seed=0, groups=1, samples=len(answers))
    reward = torch.full_like(batch.reward, paid)
    return batch.replace(group=number, reward=reward, components={"task": reward}, label={"answer": answers}, embedding=embedding)


# -- the vote --------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "ttrl", "evol-rl")
def test_with_rewards_given_they_are_grpo(ragged_batch: Batch):
    for method in (ttrl, evol):
        plain = method.derive(reward=(), filter=(), surrogate=grpo.surrogate, regularize=grpo.regularize)
        assert_same(gradient(plain, ragged_batch), gradient(grpo, ragged_batch), exact=True)


def test_the_vote_pays_the_most_common_answer():
    batch = voting([7, 7, 8, 9], [5, 5, 5], [4], paid=0.25)
    found = MajorityVote()(batch)
    assert found.reward.tolist() == [1, 1, 0, 0, 1, 1, 1, 1] == found.verdict().tolist()
    assert found.components["task"].tolist() == [0.25] * 8, "what the task pays is still known"


@pytest.mark.checks("oracle", "ttrl", by="collections.Counter")
@pytest.mark.parametrize("seed", range(20))
def test_the_vote_agrees_with_counting(seed: int):
    rng = np.random.default_rng(seed)
    groups = [rng.integers(1, 5, size=size).tolist() for size in (1, 2, 7, 16, 5)]
    found = MajorityVote().vote(voting(*groups))
    start = 0
    for group in groups:
        chosen = {answer for answer, agrees in zip(group, found[start : start + len(group)].tolist(), strict=True) if agrees}
        counts = Counter(group)
        assert len(chosen) == 1 and counts[chosen.pop()] == max(counts.values())
        start += len(group)


def test_rows_without_an_answer_have_no_vote():
    found = MajorityVote()(voting([NO_ANSWER, NO_ANSWER, NO_ANSWER, 3, 3, 4], [NO_ANSWER, NO_ANSWER]))
    assert found.reward.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]


def test_the_order_of_rows_decides_nothing():
    batch = voting([1, 1, 2, 2, 3, 3], [4, 5, 6])
    order = torch.tensor([8, 3, 1, 5, 0, 7, 2, 4, 6])
    torch.testing.assert_close(MajorityVote()(batch).reward[order], MajorityVote()(batch.take_rows(order)).reward)
    kept = SomeAnswers()(batch)
    assert kept[:6].sum() == 3 and kept[6:].sum() == 2 and SomeAnswers()(batch.take_rows(order)).equal(kept[order])
    assert SomeAnswers(share=1.0)(batch).all()


def test_a_penalty_before_the_vote_stays():
    batch = voting([7, 7, 8], paid=1.0)
    assert MajorityVote()(batch.replace(reward=batch.reward - 0.5)).reward.tolist() == [0.5, 0.5, -0.5]


def test_metrics_say_how_often_the_vote_was_right():
    batch = voting([7, 7, 8, 9], [5, 5, 6])
    paid = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    told = MajorityVote().metrics(MajorityVote()(batch.replace(reward=paid, components={"task": paid})))
    assert told == {"label_accuracy": 0.5, "distinct_answers": 2.5}


def test_votes_are_cast_before_rows_are_dropped_and_filters_judge_by_them():
    method = compose(["dapo", "ttrl"])
    assert [type(part) for part in method.reward] == [OverlongPenalty, MajorityVote]
    batch = voting([1, 1, 2, 2, 2, 1, 1], [3, 3, 3, 3])  # the task pays nothing at all
    scored = score(method, batch, late=False)
    assert DropConstantGroups()(scored).tolist() == [True] * 7 + [False] * 4
    assert not DropConstantGroups()(batch).any()


def test_a_step_reports_the_tasks_reward_and_learns_from_half():
    made = learner(ttrl, SIZES)
    told, rows = made.step(1), made.last
    assert rows.rows == 8 and rows.group_stats(rows.reward).size.tolist() == [2.0] * 8 and told["kept_rows"] == 0.5
    assert told["samples"] == 16 and 0 < told["reward_verdict"] < 1 and told["distinct_answers"] > 1
    assert set(rows.reward.tolist()) <= {0.0, 1.0} and told["reward"] != told["reward_verdict"]
    assert rows.embedding is None


def test_groups_of_different_sizes_vote_too():
    made = learner(compose(["ttrl", "knapsack"]), SIZES)
    told, rows = made.step(1), made.last
    assert told["samples"] == 16 and 0 <= told["label_accuracy"] <= 1 and rows.rows < 16


# -- novelty ---------------------------------------------------------------------------------------------------------------


def released(embedding: np.ndarray, right: list[bool]) -> list[float]:
    """The released reward of one group, written down again."""
    alike = np.clip(embedding @ embedding.T, 0.0, 1.0)
    count = len(right)
    novelty = np.zeros(count)
    for i in range(count):
        own = [j for j in range(count) if j != i and right[j] == right[i]]
        others = [j for j in range(count) if j != i]
        average = np.mean([alike[i, j] for j in (own or others)])
        novelty[i] = 1 - (0.5 * average + 0.5 * max(alike[i, j] for j in others))
    reward = np.zeros(count)
    for side, low, middle, alone in ((True, 0.5, 0.75, 1.0), (False, -1.0, -0.75, -0.5)):
        members = [i for i in range(count) if right[i] == side]
        values = novelty[members]
        for i in members:
            spread = values.max() - values.min()
            reward[i] = alone if len(members) == 1 else middle if spread == 0 else low + 0.5 * (novelty[i] - values.min()) / spread
    return reward.tolist()


def unit(rows: int, seed: int) -> torch.Tensor:
    drawn = torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


@pytest.mark.checks("oracle", "evol-rl", by="the released reward, written down again")
@pytest.mark.parametrize("answers", [[1, 1, 1, 2, 3, 4], [1, 1, 2], [1, 2, 2, 2, 2], [5, 5, 5, 5], [1, 1, 1, 1, 2, 2, 2, 3]])
@pytest.mark.parametrize("seed", range(3))
def test_rewards_are_the_released_ones(answers: list[int], seed: int):
    batch = voting(answers, embedding=unit(len(answers), seed))
    voted = MajorityVote()(batch)
    found = SemanticNovelty()(voted).reward
    wanted = released(batch.embedding.double().numpy(), (voted.verdict() > 0).tolist())
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)
    right = voted.verdict() > 0
    assert found[right].min() >= 0.5 and (right.all() or found[~right].max() <= -0.5)


def test_two_groups_are_judged_apart():
    one, other = unit(4, seed=1), unit(3, seed=2)
    both = voting([1, 1, 1, 2], [3, 3, 4], embedding=torch.cat([one, other]))
    alone = [voting([1, 1, 1, 2], embedding=one), voting([3, 3, 4], embedding=other)]
    found = SemanticNovelty()(MajorityVote()(both)).reward.tolist()
    assert found == [value for each in alone for value in SemanticNovelty()(MajorityVote()(each)).reward.tolist()]


def test_answers_that_all_say_the_same_are_the_vote_on_another_scale():
    """Equal novelty pays 0.75 and -0.75: the vote times 1.5, minus 0.75."""
    same = unit(1, seed=3).expand(5, -1)
    batch = MajorityVote()(voting([1, 1, 1, 2, 2], embedding=same))
    torch.testing.assert_close(SemanticNovelty()(batch).reward, 1.5 * batch.verdict() - 0.75, rtol=0, atol=0)


def test_no_answer_earns_least_and_is_nobodys_neighbour():
    vectors = unit(5, seed=4)
    batch = MajorityVote()(voting([1, 1, 1, 2, NO_ANSWER], embedding=vectors))
    found = SemanticNovelty()(batch).reward.tolist()
    four = SemanticNovelty()(MajorityVote()(voting([1, 1, 1, 2], embedding=vectors[:4]))).reward.tolist()
    assert found == [*four, -1.0] and four[3] == -0.5
    nobody = MajorityVote()(voting([NO_ANSWER, NO_ANSWER], embedding=vectors[:2]))
    assert SemanticNovelty()(nobody).reward.tolist() == [-1.0, -1.0]
    assert relative_novelty(vectors[:1], torch.tensor([True])).tolist() == [1.0]


def test_without_span_the_vote_gives_the_sign_alone():
    batch = MajorityVote()(voting([1, 1, 2], embedding=unit(3, seed=5)))
    assert SemanticNovelty(span=0.0)(batch).reward.tolist() == [1.0, 1.0, -1.0]


def test_what_is_missing_is_named():
    with pytest.raises(MethodError, match="no embedding"):
        SemanticNovelty()(voting([1, 1]))
    with pytest.raises(MethodError, match="label 'answer'"):
        MajorityVote()(voting([1, 1]).replace(label={}))


def test_a_step_of_evol_rl_reads_what_the_answers_say():
    made = learner(evol.with_knobs({"reward.1.embedding": "characters"}), SIZES)
    told, rows = made.step(1), made.last
    assert rows.embedding is None and rows.rows == 8 and "label_accuracy" in told
    sides = rows.components["verdict"] > 0
    assert (rows.reward[sides] >= 0.5).all() and (rows.reward[~sides] <= -0.5).all() and len(rows.reward.unique()) > 2


def test_vectors_of_answers_do_not_go_where_rows_are_cut_or_joined():
    made = learner(evol.with_knobs({"reward.1.embedding": "characters"}), SIZES)
    rows = collect(made.rollout, 1)
    assert rows.embedding.shape[0] == 16 and rows.take_rows(slice(0, 3)).embedding.shape[0] == 3
    assert rows.take_decisions(torch.arange(5)).embedding is None and made.rollout.join([rows, rows]).embedding is None
