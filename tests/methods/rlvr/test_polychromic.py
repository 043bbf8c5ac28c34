"""Poly-PPO: set scores by hand and by enumeration, and the vines they are drawn from."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.advantage import GAE
from upslope.objective.advantage.polychromic import PolychromicAdvantage
from upslope.objective.regularize.behavior import BehaviorKL
from upslope.policies import load_language_model
from upslope.rollout.text import TextRollout
from upslope.rollout.vine import Vine, VineRollout
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.tasks.text import Problem, Scores
from upslope.types import Batch, Sampling, Trajectories, View, decision_keys

ppo, polychromic = find("ppo").for_domain("text"), find("polychromic")
MODEL = "tiny:layers=1,width=32"


def bandit(answers: Tensor, reward: Tensor, groups: Tensor | None = None, seed: int = 0) -> Batch:
    """One decision a row: arm ``answers [N]``, with nothing expected of it."""
    rows = len(answers)
    ones, zeros = torch.ones(rows, 1, dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64)
    return Batch(
        sampled=ones,
        reward=reward.double(),
        group=torch.zeros(rows, dtype=torch.int64) if groups is None else groups,
        task=torch.zeros(rows, dtype=torch.int64),
        behavior=View(zeros),
        proximal=View(zeros, zeros, zeros),
        action=answers.unsqueeze(1),
        label={"answer": answers},
        key=decision_keys(torch.arange(rows) + 100 * seed, 1),
    )


def shared(part: PolychromicAdvantage, batch: Batch) -> Tensor:
    return part(batch)[:, 0]


# -- the advantage ---------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "polychromic")
def test_without_a_window_it_is_ppo():
    batch = random_batch(seed=1)
    off = polychromic.derive(
        advantage=PolychromicAdvantage(window=0, base=ppo.advantage),
        surrogate=ppo.surrogate,
        regularize=ppo.regularize,
        models=ppo.models,
    )
    assert_same(gradient(off, batch), gradient(ppo, batch), exact=True)
    alone = random_batch(seed=2, groups=5, samples=1)
    whole = off.with_knobs({"advantage.window": 5})
    assert_same(gradient(whole, alone), gradient(ppo, alone), exact=True)
    quiet = polychromic.with_knobs({"regularize.weight": 0.0})
    assert_same(gradient(quiet, batch), gradient(quiet.derive(regularize=None), batch), exact=True)


@pytest.mark.checks("oracle", "polychromic", by="hand-worked numbers")
def test_scores_of_sets_by_hand():
    batch = bandit(torch.tensor([7, 7, 8, 9]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    member = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1]]).double()
    # {7, 7}: mean 1, one class of two. {7, 8}: mean 1, two of two. {7, 9}: mean 1/2, two of two.
    part = PolychromicAdvantage(n=2, sets=3)
    assert part.scores(batch, member).tolist() == [[0.5, 1.0, 0.5]]
    assert dataclasses.replace(part, combine="sum").scores(batch, member).tolist() == [[1.5, 2.0, 1.5]]
    assert dataclasses.replace(part, diversity=False).scores(batch, member).tolist() == [[1.0, 1.0, 0.5]]

    class Fixed(PolychromicAdvantage):
        def members(self, batch: Batch) -> Tensor:
            return member

    # Baseline 2/3. The first 7 is in the sets of -1/6 and +1/3, the second in two of -1/6; 8 in +1/3, 9 in -1/6.
    assert shared(Fixed(n=2, sets=3), batch).tolist() == pytest.approx([1 / 12, -1 / 6, 1 / 3, -1 / 6])
    assert shared(Fixed(n=2, sets=3, baseline="none"), batch).tolist() == pytest.approx([0.75, 0.5, 1.0, 0.5])


def exact_gradients(part: PolychromicAdvantage, branches: int, logits: Tensor, pays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The estimator's expected gradient and that of E f, both by enumeration over all outcomes, and the sets that were drawn."""
    outcomes = torch.tensor(list(itertools.product(range(len(logits)), repeat=branches)))
    logp = logits.log_softmax(0)[outcomes]
    chance = logp.sum(1).exp()
    gain = torch.zeros((), dtype=torch.float64)
    for outcome, weight, terms in zip(outcomes, chance.detach(), logp, strict=True):
        gain = gain + weight * (shared(part, bandit(outcome, pays[outcome])) * terms).sum()
    estimated = torch.autograd.grad(gain, logits, retain_graph=True)[0]
    sets = torch.tensor(list(itertools.product(range(len(logits)), repeat=part.n)))
    score = torch.stack([pays[each].mean() * len(set(each.tolist())) / part.n for each in sets])
    value = (logits.log_softmax(0)[sets].sum(1).exp() * score).sum()
    return estimated, torch.autograd.grad(value, logits)[0], part.members(bandit(outcomes[0], pays[outcomes[0]]))


@pytest.mark.checks("oracle", "polychromic", by="enumeration of all outcomes")
def test_the_expected_gradient_is_that_of_the_expected_set_score():
    logits = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    pays = torch.tensor([1.0, 0.7, 0.0], dtype=torch.float64)
    # One set of all branches and no baseline: sum_i f grad log pi_i, whose mean is the gradient of E f, n times that of one member.
    estimated, exact, _ = exact_gradients(PolychromicAdvantage(n=3, sets=1, baseline="none"), 3, logits, pays)
    torch.testing.assert_close(estimated, exact)
    # Drawn sets and their mean as the baseline: a branch in k of M sets gives (1 - k / M) / n of it, so the direction is exact.
    part = PolychromicAdvantage(n=2, sets=3)
    estimated, exact, member = exact_gradients(part, 4, logits, pays)
    times = member.sum(1)
    share = float(torch.where(times > 0, 1 - times / 3, 0.0).sum()) / 2
    assert share > 0 and (member.sum(0) == 2).all()
    torch.testing.assert_close(estimated, share * exact)


def test_identical_branches_have_no_advantage():
    batch = bandit(torch.full((8,), 4), torch.ones(8))
    assert not shared(PolychromicAdvantage(), batch).any()
    # Nor has anything where all of a group are in every set.
    four = bandit(torch.arange(4), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert shared(PolychromicAdvantage(), four).abs().max() < 1e-15


@pytest.mark.checks("identity", "polychromic")
def test_without_diversity_it_is_the_mean_return_of_the_vine():
    batch = bandit(torch.arange(8) % 3, torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0]))
    single = shared(PolychromicAdvantage(n=1, sets=64, diversity=False, baseline="none"), batch)
    assert single.tolist() == batch.reward.tolist(), "sets of one are the branches themselves"
    part = PolychromicAdvantage(n=3, sets=5, diversity=False)
    member = part.members(batch)
    mean = (member * batch.reward.unsqueeze(1)).sum(0) / 3
    expected = (member * (mean - mean.mean())).sum(1) / member.sum(1).clamp_min(1)
    torch.testing.assert_close(shared(part, batch), expected)
    # A constant diversity only scales it.
    different = bandit(torch.arange(8), batch.reward)
    torch.testing.assert_close(shared(dataclasses.replace(part, diversity=True), different), shared(part, batch))


def test_sets_are_drawn_evenly_within_groups():
    part = PolychromicAdvantage(n=3, sets=6)
    groups = torch.tensor([4, 4, 1, 4, 1, 4, 1, 4, 4, 9, 4])
    counts = torch.zeros(11)
    for seed in range(400):
        batch = bandit(torch.arange(11), torch.ones(11), groups, seed)
        member = part.members(batch)
        for group, size in ((4, 3), (1, 3), (9, 1)):
            assert (member[groups == group].sum(0) == size).all()
        counts += member.sum(1)
    # 2400 sets: each of the seven is in 3/7 of them, with a spread of about 24.
    assert (counts[groups == 4] - 2400 * 3 / 7).abs().max() < 100
    assert (counts[groups == 1] == 2400).all()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    assert part.members(batch.take_rows(order)).equal(member[order])


def test_the_window_is_counted_in_decisions():
    batch = random_batch(seed=3, groups=2, samples=6)
    part = PolychromicAdvantage(n=2, sets=4, window=2)
    plain, found = part.base(batch), part(batch)
    place = batch.sampled.cumsum(1)
    assert torch.equal(found[place > 2], plain[place > 2])
    for row in range(12):
        first = found[row][(batch.sampled[row] > 0) & (place[row] <= 2)]
        assert len(first) == 2 and first[0] == first[1]
    torch.testing.assert_close(part.signals(batch, found)["returns"], GAE(1.0, 1.0).signals(batch, plain)["returns"])


def test_diverse_right_answers_are_worth_more():
    answers, reward = torch.tensor([1, 1, 1, 1, 1, 2, 3, 1]), torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 1])
    found = torch.stack([shared(PolychromicAdvantage(), bandit(answers, reward, seed=seed)) for seed in range(100)]).mean(0)
    assert found[5] > found[[0, 1, 2, 3, 4, 7]].max() + 0.02, "the rare right answer"
    assert found[5] > found[6], "and not the rare wrong one"


# -- the vine --------------------------------------------------------------------------------------------------------------


def vine(points: int = 2, samples: int = 5, seed: int = 3) -> VineRollout:
    policy = load_language_model(MODEL, seed)
    return Vine(points).build(load_task("pairs"), policy, tasks=3, samples=samples, sampling=Sampling(9), seed=5)


def context(rows: Trajectories, row: int) -> list[int]:
    return rows.inputs.prompt[row][rows.inputs.prompt_mask[row] > 0].tolist()


def test_branches_leave_from_states_along_the_first_answer():
    made = vine(points=3)
    rows = collect(made, 1)
    assert rows.rows == 3 * (1 + 3 * 5) and rows.group.tolist() == [0, 1, 2, *(3 + row // 5 for row in range(45))]
    for problem in range(3):
        stem = rows.action[problem][rows.sampled[problem] > 0].tolist()
        prompt = context(rows, problem)
        assert prompt == made.policy.encode(rows.info[problem]["prompt"])
        for point in range(3):
            begun = stem[: point * len(stem) // 3]
            for branch in range(5):
                row = 3 + (problem * 3 + point) * 5 + branch
                assert context(rows, row) == prompt + begun and rows.task[row] == rows.task[problem]
                ids = begun + rows.action[row][rows.sampled[row] > 0].tolist()
                assert len(ids) <= 9 and made.policy.decode(ids) == rows.info[row]["response"]
                assert (ids[-1] in made.policy.stop_ids) == (rows.info[row]["finish"] == "stop")
    torch.testing.assert_close(made.policy.evaluate(rows).logp, rows.behavior.logp, rtol=1e-4, atol=1e-4)
    again = collect(vine(points=3), 1)
    assert torch.equal(again.action, rows.action) and not torch.equal(collect(vine(points=3), 2).action, rows.action)


def test_items_are_counted_from_the_beginning_of_the_answer():
    made = vine(points=2)
    object.__setattr__(made, "task", dataclasses.replace(made.task))
    object.__setattr__(made.task, "separator", "a")
    policy = made.policy
    ids = policy.tokenizer("xaxxa", add_special_tokens=False).input_ids
    rows = Trajectories(
        sampled=torch.ones(1, 3), reward=torch.zeros(1), group=torch.zeros(1), task=torch.zeros(1),
        behavior=View(torch.zeros(1, 3)), action=torch.tensor([ids[2:]]),
    )  # fmt: skip
    assert made.items(rows, [ids]).tolist() == [[1, 1, 1]]
    assert made.items(rows, [ids[2:]]).tolist() == [[0, 0, 0]]


@pytest.mark.checks("identity", "polychromic")
def test_a_vine_from_the_beginning_is_plain_groups_and_one_answer():
    made = vine(points=1)
    rows = collect(made, 1)
    plain = collect(TextRollout(load_task("pairs"), made.policy, tasks=3, samples=5, sampling=Sampling(9), seed=5), 1)
    assert rows.task[3:].equal(plain.task) and rows.rows == 3 + plain.rows
    assert all(context(rows, 3 + row) == context(plain, row) for row in range(plain.rows))


def letters(problems: list[Problem], responses: list[str]) -> Scores:
    reward = [sum(map(str.isalpha, response)) / 6 for response in responses]
    return Scores(reward, [False] * len(reward))


def test_a_step_through_the_learner():
    sizes = Settings(
        tasks_per_step=3, samples_per_task=6, warm_start=0.0, eval_problems=4, max_tokens=6, steps=10, lr=1e-3, warmup=0
    )
    bench = set_up(polychromic, "reverse", MODEL, sizes)
    object.__setattr__(bench.task, "score", letters)
    made = PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())
    told = made.step(1)
    assert told["grad_norm"] > 0 and made.last.rows == 3 * 13
    near = made.last.sampled.cumsum(1) <= 5
    groups = made.last.group.unique(return_counts=True)[1]
    assert sorted(groups.tolist()) == [1, 1, 1, *[6] * 6] and near.any()


def test_the_distance_to_the_sampling_policy():
    batch = random_batch(seed=5)
    found = BehaviorKL(weight=0.5)(batch)
    x = batch.behavior.logp - batch.current.logp
    torch.testing.assert_close(found, 0.5 * (x.exp() - x - 1))
    assert not BehaviorKL(weight=0.0)(batch).any()


def test_nonsense_is_refused():
    for wrong in ({"n": 0}, {"sets": 0}, {"window": -2}):
        with pytest.raises(MethodError, match=str(next(iter(wrong.values())))):
            PolychromicAdvantage(**wrong)
    with pytest.raises(MethodError, match="0"):
        Vine(0)
