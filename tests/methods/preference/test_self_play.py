"""SPPO, INPO, SPO and Nash-MD: identities, the exact iterates on rock, scissors, paper, and another library's loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from oracles import assert_loss_and_gradient
from torch import Tensor

from upslope.errors import MethodError
from upslope.evolve.comparing import columns_of
from upslope.methods import find
from upslope.objective.estimator import annotate, kept
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.surrogate.preference import SquaredPreference, SquaredTarget
from upslope.rewards.preferences import bradley_terry
from upslope.testing.batches import replace_view, with_needs
from upslope.types import Batch, View

sppo, inpo, spo, ipo, rloo, online = (find(name) for name in ("sppo", "inpo", "spo-minimax", "ipo", "rloo", "online-dpo"))
nash, reinforce = find("nash-md"), find("reinforce")
RPS = np.array([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])
START = np.array([0.8, 0.1, 0.1])
FIRST = torch.tensor([0, 0, 1, 1, 2, 2])
SECOND = torch.tensor([1, 2, 0, 2, 0, 1])


def compared(scores: list[float], seed: int = 0) -> Batch:
    """One group of ragged answers with these rewards, compared by them, and a policy a few steps ago."""
    batch = random_batch(seed, groups=1, samples=len(scores))
    reward = torch.tensor(scores, dtype=torch.float64)
    return with_needs(batch.replace(reward=reward, components={"task": reward}), sppo, seed)


def table(logits: Tensor, references: dict[str, np.ndarray], actions: Tensor, advantage: Tensor, groups: Tensor) -> Batch:
    """Answers of one token: the rows choose these actions of a softmax over three."""
    rows = len(actions)
    ones, nothing = torch.ones(rows, 1, dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64)
    return Batch(
        sampled=ones,
        reward=torch.zeros(rows, dtype=torch.float64),
        group=groups,
        task=groups,
        behavior=View(nothing),
        current=View(logits.log_softmax(0)[actions].unsqueeze(1)),
        reference={name: View(torch.from_numpy(np.log(each))[actions].unsqueeze(1)) for name, each in references.items()},
        advantage=advantage.unsqueeze(1),
    )


# -- SPPO ------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "sppo")
def test_sppo_with_its_changes_off_is_online_dpo(ragged_batch: Batch):
    names = ("data", "advantage", "filter", "ratio", "references", "surrogate", "aggregate")
    plain = sppo.derive(**{name: getattr(online, name) for name in names})
    assert_same(gradient(plain, ragged_batch), gradient(online, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "sppo", by="liger-kernel")
@pytest.mark.parametrize("seed", range(3))
def test_certain_wins_are_the_hard_loss_of_liger_kernel(seed: int):
    """Scores 0 and 2,000: the chance is exactly 1, ``single`` has the targets η/2 and -η/2. Liger sums the two, we average them."""
    from liger_kernel.chunked_loss.dpo_loss import LigerFusedLinearDPOFunction

    batch = compared([0.0, 2000.0, 1000.0], seed)
    method = sppo.with_knobs({"advantage.single": True, "surrogate.eta": 8.0})
    leaf = batch.current.logp.detach().clone().requires_grad_()
    ours, reference = (leaf * batch.sampled).sum(1), (batch.reference["previous"].logp * batch.sampled).sum(1)
    loss, *_ = LigerFusedLinearDPOFunction.preference_loss_fn(
        ours[1:2], ours[:1], torch.zeros(2), reference[1:2], reference[:1], beta=1 / 8.0, loss_type="sppo_hard"
    )
    assert_loss_and_gradient(gradient(method, batch), loss / 2, leaf)


def test_the_loss_of_two_answers_by_hand():
    """Scores log 3 and 0: P = 3/4, so the win rate with itself is 5/8 and 3/8; with η = 4 the targets are 1/2 and -1/2."""
    batch = compared([np.log(3.0), 0.0])
    moved = ((batch.current.logp - batch.reference["previous"].logp) * batch.sampled).sum(1).detach()
    method = sppo.with_knobs({"surrogate.eta": 4.0})
    by_hand = ((moved[0] - 0.5) ** 2 + (moved[1] + 0.5) ** 2) / 2
    torch.testing.assert_close(gradient(method, batch).loss, by_hand)
    without = sppo.with_knobs({"surrogate.eta": 4.0, "advantage.with_self": False})  # 3/4 and 1/4: targets 1 and -1
    torch.testing.assert_close(gradient(without, batch).loss, ((moved[0] - 1) ** 2 + (moved[1] + 1) ** 2) / 2)


def test_only_the_best_and_the_worst_answer_learn_and_none_where_all_win_alike():
    batch = annotate(sppo, compared([0.0, 3.0, 1.0, -2.0, 3.0]))
    assert kept(sppo, batch, late=True).tolist() == [False, True, False, True, False]
    assert not kept(sppo, annotate(sppo, compared([0.1] * 5)), late=True).any()
    found = gradient(sppo, compared([0.1] * 5))
    assert found.loss == 0 and not found.logp.any()


@pytest.mark.checks("identity", "sppo")
def test_no_step_and_no_preference_are_the_square_pull_to_the_policy_a_few_steps_ago():
    batch = compared([2.0, 0.0, 1.0])
    off = sppo.with_knobs({"surrogate.eta": 0.0})
    moved = ((batch.current.logp - batch.reference["previous"].logp) * batch.sampled).sum(1).detach()
    torch.testing.assert_close(gradient(off, batch).loss, moved[:2].square().mean())
    even = batch.replace(signal={name: torch.full_like(column, 0.5) for name, column in batch.signal.items()})
    without_filter = sppo.derive(filter=None)
    torch.testing.assert_close(gradient(without_filter, even).loss, moved.square().mean())


def test_a_constant_added_to_all_scores_changes_nothing():
    assert_same(gradient(sppo, compared([2.0, 0.0, 1.0])), gradient(sppo, compared([5.0, 3.0, 4.0])), exact=True)


def test_on_rock_scissors_paper_the_last_policy_of_sppo_circles_and_the_average_is_near_uniform():
    """At every iterate of multiplicative weights the same is left of each answer's target: the log of the partition minus η/2."""
    eta, policy, seen = 0.05, START, []
    for step in range(4000):
        chances = RPS @ policy
        following = policy * np.exp(eta * chances)
        following /= following.sum()
        if step % 500 == 0:
            batch = table(torch.from_numpy(np.log(following)), {"previous": policy}, torch.arange(3),
                          torch.from_numpy(chances - 0.5), torch.zeros(3, dtype=torch.int64))  # fmt: skip
            loss, _ = SquaredTarget(eta=eta)(batch, AgainstReferences(("previous",))(batch))
            left = eta / 2 - np.log((policy * np.exp(eta * chances)).sum())
            torch.testing.assert_close(loss.squeeze(1), torch.full((3,), left**2, dtype=torch.float64), rtol=1e-6, atol=1e-15)
        policy = following
        seen.append(policy)
    late = np.array(seen[-1000:])
    assert (RPS @ late.T - 0.5).max(0).min() > 0.1, "it stays away from uniform"
    assert np.abs(np.mean(seen, 0) - 1 / 3).max() < 0.02


# -- INPO ------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "inpo")
def test_inpo_with_its_changes_off_is_ipo(ragged_batch: Batch):
    names = ("rollout", "data", "advantage", "ratio", "references", "surrogate")
    plain = inpo.derive(**{name: getattr(ipo, name) for name in names})
    batch = with_needs(ragged_batch, ipo)
    assert_same(gradient(plain, batch), gradient(ipo, batch), exact=True)


@pytest.mark.checks("identity", "inpo")
def test_anchored_fully_inpo_is_ipo_of_certain_pairs():
    """τ = η: only the start counts."""
    batch = compared([2.0, 0.0])
    full = inpo.with_knobs({"ratio.weights": (1.0, 0.0), "advantage.hard": True, "surrogate.tau": 0.7})
    sides = batch.replace(label={**batch.label, "side": torch.tensor([1, -1])})
    assert_same(gradient(full, batch), gradient(ipo.with_knobs({"surrogate.tau": 0.7}), sides))


def test_the_advantage_of_two_answers_says_how_sure_the_win_is():
    chance = 1 / (1 + np.exp(-3.0))
    assert annotate(inpo, compared([-1.0, 2.0])).advantage[:, 0].tolist() == pytest.approx([1 - 2 * chance, 2 * chance - 1])
    hard = inpo.with_knobs({"advantage.hard": True})
    assert annotate(hard, compared([1.0, 2.0, -1.0])).advantage[:, 0].tolist() == [0, 1, -1]


def test_of_more_answers_win_rates_decide_though_the_best_would_lose_against_the_worst():
    """Three rocks, a paper, scissors: with themselves paper wins (3·0.9 + 0.1 + 0.5)/5 = 0.66 and scissors (3·0.1 + 0.9 + 0.5)/5 =
    0.34, and scissors beat paper. Over all pairs that a policy draws, the least-squares target is 2 (0.66 - 0.34)."""
    played = [0, 0, 0, 2, 1]
    columns = columns_of(RPS[np.ix_(played, played)])
    assert columns["win_rate_with_self"].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.66, 0.34])
    batch = compared([0.0] * 5).replace(signal={name: torch.from_numpy(column) for name, column in columns.items()})
    assert annotate(inpo, batch).advantage[:, 0].tolist() == pytest.approx([0, 0, 0, 0.64, -0.64])


def test_rows_that_nobody_compared_are_refused_with_a_cure():
    with pytest.raises(MethodError, match=r"data=Compared\(\)"):
        annotate(inpo, compared([1.0, 0.0]).replace(signal={}))


def mirror_step(policy: np.ndarray, start: np.ndarray, chances: np.ndarray, eta: float, tau: float) -> np.ndarray:
    """INPO's iterate in closed form."""
    log = chances @ policy / eta + tau / eta * np.log(start) + (1 - tau / eta) * np.log(policy)
    weight = np.exp(log - log.max())
    return weight / weight.sum()


def population_gradient(
    at: np.ndarray, policy: np.ndarray, start: np.ndarray, chances: np.ndarray, eta: float, tau: float
) -> Tensor:
    """Gradient of INPO's loss in the logits, over all pairs that ``policy`` draws; the winner is in expectation."""
    logits = torch.from_numpy(np.log(at)).requires_grad_()
    actions = torch.stack([FIRST, SECOND], 1).flatten()
    sure = torch.from_numpy(2 * chances - 1)[FIRST, SECOND]
    advantage = torch.stack([sure, -sure], 1).flatten()
    groups = torch.arange(len(FIRST)).repeat_interleave(2)
    batch = table(logits, {"start": start, "previous": policy}, actions, advantage, groups)
    branches = AgainstReferences(("start", "previous"), (tau / eta, 1 - tau / eta))(batch)
    loss, _ = SquaredPreference(tau=eta)(batch, branches)
    drawn = torch.from_numpy(policy)
    (grad,) = torch.autograd.grad((drawn[FIRST] * drawn[SECOND] * loss[::2, 0]).sum(), logits)
    return grad


@pytest.mark.checks("oracle", "inpo", by="the mirror-descent iterate in closed form")
@pytest.mark.parametrize("seed", range(5))
def test_the_mirror_descent_iterate_is_where_the_gradient_of_inpo_vanishes(seed: int):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.05, 0.95, (3, 3)), 1)
    chances = upper + np.tril(1 - upper.T, -1) + np.eye(3) / 2
    policy, start = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    iterate = mirror_step(policy, start, chances, eta=2.0, tau=0.3)
    assert population_gradient(iterate, policy, start, chances, 2.0, 0.3).abs().max() < 1e-9
    assert population_gradient(policy, policy, start, chances, 2.0, 0.3).abs().max() > 1e-3


def test_on_rock_scissors_paper_the_last_policy_of_inpo_is_uniform():
    """Anchored at uniform; SPPO from the same start circles."""
    eta, tau, anchor, policy = 2.0, 0.02, np.full(3, 1 / 3), START
    for step in range(4000):
        following = mirror_step(policy, anchor, RPS, eta, tau)
        if step % 500 == 0:
            assert population_gradient(following, policy, anchor, RPS, eta, tau).abs().max() < 1e-9
        policy = following
    assert (RPS @ policy).max() - 0.5 < 1e-3


# -- SPO -------------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "spo-minimax")
def test_spo_with_rewards_given_is_rloo(ragged_batch: Batch):
    assert_same(gradient(spo.derive(data=None), ragged_batch), gradient(rloo, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "spo-minimax", by="win rates counted by hand")
def test_win_rates_by_hand_sum_to_half_the_group_and_order_like_the_scores():
    """Certain verdicts of 3 > 2 > 1 > 0: an answer beats as many of its three siblings as stand below it."""
    scores = [2.0, 0.0, 3.0, 1.0]
    rates = columns_of(bradley_terry(scores, scale=1e-3))["win_rate"]
    assert rates.tolist() == pytest.approx([2 / 3, 0, 1, 1 / 3]) and rates.sum() == pytest.approx(2.0)
    batch = compared(scores).replace(reward=torch.from_numpy(rates))
    advantage = annotate(spo, batch).advantage[:, 0]
    assert advantage.tolist() == pytest.approx([2 / 9, -2 / 3, 2 / 3, -2 / 9])
    assert advantage.argsort().tolist() == batch.replace(reward=torch.tensor(scores)).reward.argsort().tolist()


def test_a_group_of_one_wins_half():
    assert columns_of(np.array([[0.5]]))["win_rate"].tolist() == [0.5]
    view = replace_view(compared([1.0]), "current", logp=compared([1.0]).current.logp)
    assert not gradient(spo, view.replace(reward=torch.tensor([0.5], dtype=torch.float64))).logp.any()


# -- Nash-MD ---------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "nash-md")
def test_nash_md_with_its_changes_off_is_reinforce(ragged_batch: Batch):
    names = ("data", "filter", "advantage", "regularize")
    plain = nash.derive(**{name: getattr(reinforce, name) for name in names})
    assert_same(gradient(plain, ragged_batch), gradient(reinforce, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "nash-md", by="the formula, differentiated by hand")
def test_the_gradient_of_nash_md_by_hand():
    """One answer, chance 0.8 against its opponent, log-ratios 0.5 and -1.0 to the start and β = 0.1:
    dL/dlogp = (-0.3 + 0.05, -0.3 - 0.1)."""
    batch = Batch(
        sampled=torch.ones(1, 2, dtype=torch.float64),
        reward=torch.tensor([0.8], dtype=torch.float64),
        group=torch.tensor([0]),
        task=torch.tensor([0]),
        behavior=View(torch.tensor([[-1.0, -2.0]], dtype=torch.float64)),
        current=View(torch.tensor([[-1.0, -2.0]], dtype=torch.float64)),
        reference={"start": View(torch.tensor([[-1.5, -1.0]], dtype=torch.float64))},
    )
    assert gradient(nash.derive(filter=None), batch).logp.tolist()[0] == pytest.approx([-0.25, -0.4])


def nash_exact(share: float, beta: float, steps: int = 4000, lr: float = 0.3) -> np.ndarray:
    """The policy's exploitability along the exact policy gradient of Nash-MD in the logits."""
    start, logits, seen = np.log(START), np.log(START), []
    for _ in range(steps):
        policy = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        mixed = np.exp((1 - share) * np.log(policy) + share * start)
        value = RPS @ (mixed / mixed.sum()) - 0.5 - beta * (np.log(policy) - start)
        logits = logits + lr * policy * (value - policy @ value)
        seen.append((RPS @ policy).max() - 0.5)
    return np.array(seen)


def test_on_rock_scissors_paper_nash_md_settles_and_how_near_is_a_matter_of_its_mixture():
    """The figures of the method's note."""
    assert nash_exact(0.03, 0.03)[-500:].max() == pytest.approx(0.026, abs=0.002)
    assert nash_exact(0.5, 0.1)[-500:].max() == pytest.approx(0.18, abs=0.005)
