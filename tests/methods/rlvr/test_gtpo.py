"""GTPO: which tokens good and bad answers share, and what uncertain answers pay."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.aggregate import SequenceSumTokenMean
from upslope.objective.estimator import annotate, begin_update, bind
from upslope.objective.ratio.on_policy import OnPolicy
from upslope.objective.regularize.entropy import AnswerEntropyPenalty
from upslope.objective.surrogate import Unclipped
from upslope.objective.weight.conflict import ConflictTokens, EntropyCutoff
from upslope.types import Batch, Method, View

gtpo, grpo = find("gtpo"), find("grpo")
cutoff = EntropyCutoff()


def answers(*texts: str, advantage: list[float], group: list[int] | None = None) -> Batch:
    """A batch of these answers, a letter a token; ``_`` is what others wrote, a blank is padding."""
    width = max(map(len, texts))
    batch = random_batch(seed=0, groups=1, samples=len(texts), positions=width, ragged=False)
    tokens = torch.tensor([[ord(letter) for letter in text.ljust(width)] for text in texts])
    sampled = ((tokens != ord("_")) & (tokens != ord(" "))).double()
    row = torch.tensor(advantage, dtype=torch.float64)
    return batch.replace(
        sampled=sampled, action=tokens, advantage=row.unsqueeze(1) * sampled, group=torch.tensor(group or [0] * len(texts))
    )


def with_entropy(batch: Batch, *entropy: float) -> Batch:
    column = torch.tensor(entropy, dtype=torch.float64).unsqueeze(1).expand_as(batch.sampled).clone()
    return batch.replace(proximal=View(batch.proximal.logp, column), behavior=View(batch.behavior.logp, column))


def bound(method: Method, batch: Batch, first: float = -1.0) -> Batch:
    return bind(method, {"weight.1": {"first": first}}, batch)


def off(**changes) -> Method:
    """GTPO with its parts off, one by one switched on again."""
    quiet = {"weight": (), "regularize": ()}
    return gtpo.derive(**(quiet | changes))


@pytest.mark.checks("identity", "gtpo")
def test_with_its_parts_off_it_is_grpo_on_fresh_data(ragged_batch: Batch):
    plain = grpo.derive(regularize=None)
    fresh = at_proximal(ragged_batch)
    assert_same(gradient(off(), fresh), gradient(plain, fresh))
    knobs = {"weight.0.boost": 1.0, "weight.1.threshold": math.inf, "regularize.weight": 0.0}
    unshared = fresh.replace(action=torch.arange(fresh.action.numel()).view_as(fresh.action))
    assert_same(gradient(gtpo.with_knobs(knobs), unshared), gradient(plain, unshared))
    # On stale data its ratio is one still: what the score function gives.
    torch.testing.assert_close(gradient(off(), ragged_batch).logp, gradient(plain, fresh).logp)


@pytest.mark.checks("oracle", "gtpo", by="hand-worked numbers")
def test_shared_tokens_by_hand():
    batch = answers("<a12b>", "<a34>", "<c5b>", "zzz", advantage=[1.0, -1.0, -1.0, 0.0])
    part = ConflictTokens()
    forward, backward = part.runs(batch)
    # '<' at place 0 is shared by the good one and both bad ones, 'a' at place 1 by the first two; '1' is nobody else's.
    assert forward.long().tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6]
    # From the end: '>' is shared by all three, 'b' before it by the first and third.
    assert backward.long().tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 1, 0], [0] * 6]
    weight = part(batch) * batch.sampled
    assert weight.tolist() == [[2, 2, 1, 1, 2, 2], [0, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    divided = ConflictTokens(divide=True)(batch) * batch.sampled
    torch.testing.assert_close(divided, weight / torch.tensor([[2.0], [2.0], [2.0], [1.0]], dtype=torch.float64))


def test_a_run_ends_at_the_first_token_that_is_not_shared():
    batch = answers("abXde", "abYde", advantage=[1.0, -1.0])
    forward, backward = ConflictTokens().runs(batch)
    assert forward[0].tolist() == [True, True, False, False, False]
    assert backward[1].tolist() == [False, False, False, True, True]
    same = answers("abc", "abc", advantage=[1.0, -1.0])
    assert (ConflictTokens()(same)).tolist() == [[4.0] * 3, [0.0] * 3], "in both runs: boosted twice"


def test_only_the_group_and_the_sign_make_a_conflict():
    apart = answers("ab", "ab", advantage=[1.0, -1.0], group=[0, 1])
    alike = answers("ab", "ab", advantage=[1.0, 1.0])
    none = answers("ab", "ab", advantage=[1.0, 0.0])
    for batch in (apart, alike, none):
        assert ConflictTokens()(batch).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_places_count_what_was_sampled():
    batch = answers("ab__c", "a_bc", advantage=[1.0, -1.0])
    assert (ConflictTokens()(batch) * batch.sampled).tolist() == [[4, 4, 0, 0, 4], [0, 0, 0, 0, 0]]
    with pytest.raises(MethodError, match="tokens"):
        ConflictTokens()(batch.replace(action=None))


@pytest.mark.checks("oracle", "gtpo", by="hand-worked numbers")
def test_the_cut_by_entropy():
    batch = with_entropy(answers("ab", "cd", "ef", advantage=[1.0, -1.0, 0.5]), 0.2, 0.9, 0.6)

    def weights(part: EntropyCutoff, first: float) -> list[float]:
        return part(batch.replace(state={part: {"first": first}}))[:, 0].tolist()

    assert weights(cutoff, first=0.3) == [1.0, 0.0, 1.0], "0.9 is above ln 2, and the policy began below"
    assert weights(cutoff, first=0.8) == [1.0, 1.0, 1.0], "it began above"
    assert weights(EntropyCutoff(condition="always", threshold=0.55), first=0.8) == [1.0, 0.0, 0.0]
    # In the first step the answers at hand say where it began: their mean is 0.57.
    assert weights(cutoff, first=-1.0) == [1.0, 0.0, 1.0]
    assert weights(EntropyCutoff(threshold=0.5), first=-1.0) == [1.0, 1.0, 1.0]
    assert cutoff.update({"first": -1.0}, batch, {}) == {"first": pytest.approx(1.7 / 3)}
    assert cutoff.update({"first": 0.4}, batch, {}) == {"first": 0.4}


@pytest.mark.checks("oracle", "gtpo", by="the formula, written out")
def test_the_whole_loss():
    """mean_i delta_i (A_i - g H_i) / T_i sum_t lambda_t, row by row, and its gradient in log pi."""
    batch = random_batch(seed=5, groups=3, samples=4)
    batch = batch.replace(action=batch.action % 2)  # so that many tokens are shared
    update = begin_update(gtpo, annotate(gtpo, bound(gtpo, batch, first=0.1)))
    lam = ConflictTokens()(update)
    expected = torch.zeros_like(batch.sampled)
    for row in range(batch.rows):
        length = batch.lengths()[row]
        entropy = (batch.proximal.entropy[row] * batch.sampled[row]).sum() / length
        delta = float(entropy <= math.log(2))
        advantage = update.advantage[row].sum() / length
        expected[row] = -delta * (advantage - 0.1 * entropy) / length * lam[row] * batch.sampled[row] / batch.rows
    found = gradient_with(gtpo, batch, first=0.1)
    torch.testing.assert_close(found, expected)
    assert (expected == 0).all(1).any() and (lam == 0).any() and (lam == 2).any()


def gradient_with(method: Method, batch: Batch, first: float) -> Tensor:
    from upslope.objective.estimator import decision_losses

    losses, _ = decision_losses(method, begin_update(method, annotate(method, bound(method, batch, first))))
    return torch.autograd.grad(losses.sum(), batch.current.logp)[0]


def test_the_released_form():
    """The sum over answers and the division, by their factors."""
    batch = at_proximal(random_batch(seed=6, groups=2, samples=4))
    batch = batch.replace(action=batch.action % 2)
    ours, released = off(weight=ConflictTokens()), off(weight=ConflictTokens(divide=True), aggregate=SequenceSumTokenMean())
    forward, backward = ConflictTokens().runs(annotate(grpo, batch))
    longest = torch.maximum(forward.sum(1), backward.sum(1)).clamp_min(1).unsqueeze(1)
    torch.testing.assert_close(gradient(released, batch).logp, gradient(ours, batch).logp * batch.rows / longest)
    assert longest.max() > 1


def test_tags_shared_by_all_lose_probability_under_grpo_only():
    """Softmax table: mostly wrong answers between fixed tags, one exact step."""
    batch = at_proximal(answers("<x>", "<y>", "<y>", "<z>", advantage=[0.0] * 4))
    reward = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    batch = batch.replace(
        reward=reward, components={"task": reward}, current=batch.current.map(lambda c: c.detach().requires_grad_())
    )
    tags = torch.tensor([0, 2])

    def push(method: Method) -> Tensor:
        """How strongly the wrong answers' tags are pushed down."""
        return gradient(method, batch).logp[1:, tags]

    assert (push(grpo.derive(regularize=None)) > 0).all(), "a positive slope of the loss lowers the probability"
    assert not push(off(weight=ConflictTokens())).any()
    assert (gradient(off(weight=ConflictTokens()), batch).logp[0, tags] < 0).all()


def test_nonsense_is_refused():
    for make in (
        lambda: ConflictTokens(boost=-1.0),
        lambda: EntropyCutoff(threshold=0.0),
        lambda: AnswerEntropyPenalty(weight=-0.1),
    ):
        with pytest.raises(MethodError):
            make()
    with pytest.raises(MethodError, match="entropy"):
        gradient(off(regularize=AnswerEntropyPenalty()), random_batch(seed=0).replace(proximal=None))


def test_the_ratio_has_value_one_and_the_slope_of_the_score():
    batch = random_batch(seed=1)
    (branch,) = OnPolicy()(batch)
    assert (branch.value == 1).all()
    (slope,) = torch.autograd.grad(branch.value.sum(), batch.current.logp)
    assert torch.equal(slope, batch.sampled)
    assert Unclipped().takes(OnPolicy().branches())


def test_the_first_entropy_is_the_mean_over_answers_with_a_token():
    # Answers of two tokens, of one and of none, with entropies 0.2 and 0.6; nothing is known of the third.
    batch = random_batch(seed=0, groups=1, samples=3, positions=2, ragged=False)
    sampled = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    entropy = torch.tensor([[0.2, 0.2], [0.6, 0.0], [0.0, 0.0]], dtype=torch.float64)
    batch = replace_view(batch.replace(sampled=sampled), "behavior", entropy=entropy)
    part = EntropyCutoff()
    assert part.update(part.init(), batch, {})["first"] == pytest.approx(0.4)
    assert part.update({"first": 0.1}, batch, {}) == {"first": 0.1}, "only the first step writes it down"
