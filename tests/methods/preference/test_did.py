"""DID: DPO's minimum is the target if answers are rejected as its information asks for, and what the entropy of that says."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage.contest import Sides
from upslope.objective.advantage.information import InformationPair
from upslope.objective.estimator import annotate, begin_update, decision_losses, kept
from upslope.objective.functional.information import information_entropy
from upslope.runtime.seeding import generator
from upslope.types import View, decision_keys

dpo, online, did = find("dpo"), find("online-dpo"), find("did")
START = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
REWARD = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64)
BETA, SCALE = 0.25, 0.8


# -- oracle and identities -------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "did", by="hand-worked numbers")
def test_the_better_of_two_wins_as_often_as_the_target_asks_for():
    """Rewards 1 and 0, scale 0.5: the worse is rejected with chance σ(2) = 0.8808, an advantage of 0.7616. The winner moved by 3
    and the loser by -1: z = 0.1 · 4 = 0.4, loss -0.8808 log σ(0.4) - 0.1192 log σ(-0.4) = 0.4519 + 0.1088."""
    batch = random_batch(0, groups=1, samples=4, positions=1, ragged=False)
    moved = torch.tensor([[7.0], [3.0], [-1.0], [7.0]], dtype=torch.float64)
    start = torch.full((4, 1), -9.0, dtype=torch.float64)
    batch = batch.replace(
        reward=torch.tensor([0.5, 1.0, 0.0, 0.5], dtype=torch.float64),
        current=View((start + moved).requires_grad_()),
        reference={"start": View(start)},
    )
    found = annotate(did, batch)
    assert found.advantage.squeeze(1).tolist() == pytest.approx([0.0, 0.76159416, -0.76159416, 0.0], abs=1e-8)
    assert kept(did, found, late=True).tolist() == [False, True, True, False]
    pair = found.take_rows(torch.tensor([1, 2]))
    losses, _ = decision_losses(did, begin_update(did, pair))
    assert float(losses.sum().detach()) == pytest.approx(0.4519 + 0.1088, abs=2e-4)


@pytest.mark.checks("identity", "did")
def test_put_back_it_is_dpo_and_with_certain_verdicts_online_dpo():
    batch = random_batch(7, groups=5, samples=2)
    sides = batch.replace(label={**batch.label, "side": torch.tensor([1, -1] * 5)})
    assert_same(gradient(did.derive(advantage=Sides()), sides), gradient(dpo, sides), exact=True)
    more = random_batch(8, groups=5, samples=4)
    assert_same(gradient(did.with_knobs({"advantage.scale": 0.0}), more), gradient(online, more), exact=True)


def test_two_answers_drawn_with_certainty_are_online_dpo():
    batch = random_batch(9, groups=6, samples=2)
    batch = batch.replace(reward=torch.arange(12, dtype=torch.float64) % 2)
    drawn = did.with_knobs({"advantage.scale": 0.0, "advantage.rejected": "drawn"})
    assert_same(gradient(drawn, batch), gradient(online, batch), exact=True)


def test_rejected_answers_are_drawn_by_their_weight():
    """Rewards 0, 1 and 1.5 with scale 1: e^-R is 1, 0.368 and 0.223, so they are rejected in 0.628, 0.231 and 0.140 of the groups,
    and of the other two either is chosen."""
    groups = 6000
    batch = random_batch(1, groups=groups, samples=3, positions=2, ragged=False)
    batch = batch.replace(
        reward=torch.tensor([0.0, 1.0, 1.5], dtype=torch.float64).repeat(groups),
        key=decision_keys(torch.arange(3 * groups) * 7919 + 3, 2),
    )
    sides = InformationPair(scale=1.0, rejected="drawn", entropy=False)(batch)[:, 0].view(groups, 3)
    assert sides.sum(1).abs().max() == 0 and sides.abs().sum(1).eq(2).all()
    found = Counter(zip(sides.argmax(1).tolist(), sides.argmin(1).tolist(), strict=True))
    weight = [math.exp(-reward) for reward in (0.0, 1.0, 1.5)]
    for won, lost in itertools.permutations(range(3), 2):
        expected = weight[lost] / sum(weight) / 2
        assert abs(found[won, lost] / groups - expected) < 4 * math.sqrt(expected / groups)


# -- the theorem, on a table -----------------------------------------------------------------------------------------------


def population_gradient(logits: Tensor, start: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Gradient of DPO's expected loss where chosen answers come from the start and rejected ones from ``rejected``."""
    logits, arms = logits.clone().requires_grad_(), len(start)
    duels = list(itertools.permutations(range(arms), 2))
    who = torch.tensor([arm for duel in duels for arm in duel])
    batch = random_batch(0, groups=len(duels), samples=2, positions=1, ragged=False)
    batch = batch.replace(
        current=View(logits.log_softmax(0)[who].unsqueeze(1)),
        reference={"start": View(start.log()[who].unsqueeze(1))},
        label={"side": torch.tensor([1, -1] * len(duels))},
    )
    method = dpo.with_knobs({"surrogate.beta": beta})
    losses, _ = decision_losses(method, begin_update(method, annotate(method, batch)))
    chance = torch.stack([start[won] * rejected[lost] for won, lost in duels]) * len(duels)
    (grad,) = torch.autograd.grad((losses.view(-1, 2).sum(1) * chance).sum(), logits)
    return grad


def target_of(reward: Tensor) -> Tensor:
    return (START.log() + reward / (BETA * SCALE)).softmax(0)


def test_with_the_right_rejected_answers_the_target_is_the_minimum():
    target = target_of(REWARD)
    rejected = (START.log() + BETA * (START / target).log()).softmax(0)
    torch.testing.assert_close(rejected, (START.log() - REWARD / SCALE).softmax(0))  # what the part draws by
    assert population_gradient(target.log(), START, rejected, BETA).abs().max() < 1e-9
    assert population_gradient(target.log(), START, START, BETA).abs().max() > 1e-3
    assert population_gradient(START.log(), START, rejected, BETA).abs().max() > 1e-3


def test_the_chances_of_the_part_have_the_target_as_minimum_whoever_samples():
    """Each two answers meet equally often here, not as the start draws them; advantages are those of groups of two."""
    duels = list(itertools.combinations(range(4), 2))
    who = torch.tensor([arm for duel in duels for arm in duel])
    method = did.with_knobs({"surrogate.beta": BETA, "advantage.scale": SCALE})
    logits = target_of(REWARD).log().requires_grad_()
    batch = random_batch(0, groups=len(duels), samples=2, positions=1, ragged=False).replace(
        current=View(logits.log_softmax(0)[who].unsqueeze(1)),
        reference={"start": View(START.log()[who].unsqueeze(1))},
        reward=REWARD[who],
    )
    losses, _ = decision_losses(method, begin_update(method, annotate(method, batch)))
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    assert grad.abs().max() < 1e-9


# -- entropy and displacement ----------------------------------------------------------------------------------------------


def exact_entropy(policy: Tensor, start: Tensor) -> float:
    information = (policy / start) / (policy / start).sum()
    return float(-(information * information.log()).sum())


def sampled_entropy(policy: Tensor, start: Tensor, count: int) -> float:
    drawn = torch.multinomial(policy, count, replacement=True, generator=generator(0, "answers"))
    alike = torch.zeros(count, dtype=torch.int64)
    return float(information_entropy(policy.log()[drawn], start.log()[drawn], alike, 1))


def test_a_policy_at_its_start_says_nothing_in_particular():
    assert exact_entropy(START, START) == pytest.approx(math.log(4), abs=1e-12)
    assert sampled_entropy(START, START, 20_000) == pytest.approx(math.log(4), abs=0.01)
    others = [target_of(REWARD), target_of(-REWARD), START.sqrt() / START.sqrt().sum()]
    assert all(exact_entropy(policy, START) < math.log(4) for policy in others)


def test_the_entropy_from_samples_is_that_of_the_whole_distribution():
    policy = (START.log() + REWARD).softmax(0)
    assert sampled_entropy(policy, START, 50_000) == pytest.approx(exact_entropy(policy, START), abs=0.01)


def test_concentrated_information_raises_the_chosen_likelihood_and_spread_information_lowers_both():
    """Two answers have 0.45 each at the start, 48 others the rest; the better of two draws wins, ties are dropped. One target has
    most of its information on the first answer (entropy 0.76 of at most 3.91), one spreads from both to the others (3.88)."""
    start = torch.tensor([0.45, 0.45] + [0.1 / 48] * 48, dtype=torch.float64)
    sharp = torch.zeros(50, dtype=torch.float64)
    sharp[0] = 6.0
    spread = -0.7 * start.log()
    spread[0] += 0.1
    moved = {}
    for name, reward in (("sharp", sharp), ("spread", spread)):
        target = (start.log() + reward).softmax(0)
        first, second = torch.meshgrid(torch.arange(50), torch.arange(50), indexing="ij")
        better = torch.where(reward[first] >= reward[second], first, second)
        worse = first + second - better
        change, chance = (target / start).log(), torch.where(reward[first] != reward[second], torch.outer(start, start), 0.0)
        moved[name] = exact_entropy(target, start), float((chance * change[better]).sum()), float((chance * change[worse]).sum())
    assert moved["sharp"][0] < 1.0 and moved["spread"][0] > 3.7
    assert moved["sharp"][1] > 0 > moved["sharp"][2]
    assert moved["spread"][1] < 0 and moved["spread"][2] < 0


def test_a_step_reports_the_entropy_of_all_its_samples():
    made = learner("did", SIZES)
    first = made.step(1)
    assert first["information_entropy"] > 0 and first["loss"] == pytest.approx(math.log(2), abs=1e-5)
    off = learner(did.with_knobs({"advantage.entropy": False}), SIZES)
    assert "information_entropy" not in off.step(1)


def test_answers_of_different_length_are_not_compared():
    batch = random_batch(2, groups=1, samples=4, positions=3, ragged=False)
    on = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.float64)
    batch = batch.replace(sampled=on)
    told = InformationPair().metrics(batch)["information_entropy"]
    alone = InformationPair().metrics(batch.take_rows(slice(0, 2)))["information_entropy"]
    assert told == pytest.approx(alone, abs=1e-12)
    assert InformationPair().metrics(batch.take_rows(slice(2, 4))) == {}
