"""Preferences from trees: identities, losses of single steps by hand, and what a run of each does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from small_learner import SIZES

import upslope as up
from upslope.errors import MethodError
from upslope.learners.phases import last_steps
from upslope.methods import find
from upslope.objective.advantage.contest import BestWorst
from upslope.objective.advantage.siblings import SiblingValues
from upslope.objective.estimator import annotate, kept
from upslope.rollout.search_tree import Node, SearchTree
from upslope.setting_up import set_up
from upslope.types import Batch, View

mcts, online, simpo, tp, itool = (find(name) for name in ("mcts-dpo", "online-dpo", "simpo", "tp-llama", "itool"))


def siblings(value: list[float], visits: list[float], groups: int = 1, seed: int = 0) -> Batch:
    """Steps behind the same beginnings, ragged, with what a search has found of them."""
    batch = random_batch(seed, groups=groups, samples=len(value) // groups)
    signal = {name: torch.tensor(column, dtype=torch.float64) for name, column in (("value", value), ("visits", visits))}
    return batch.replace(signal=signal, reward=signal["value"].nan_to_num(), components={"task": signal["value"].nan_to_num()})


def sides(part: SiblingValues, batch: Batch) -> list[float]:
    return [round(each, 6) for each in batch.row_mean(part(batch)).tolist()]


# -- mcts-dpo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "mcts-dpo")
def test_put_back_it_is_online_dpo():
    """Without a tree, and in a tree of whole answers in which every win is certain, where value is reward."""
    batch = siblings([0.5, -1.0, 1.0, 0.0, 0.3, 0.2, 0.2, 0.9], [3.0, 1.0, 2.0, 4.0] * 2, groups=2)
    back = mcts.derive(rollout=None, advantage=BestWorst())
    certain = mcts.with_knobs({"advantage.smoothing": False})
    for method in (back, certain):
        assert_same(gradient(method, batch), gradient(online, batch), exact=True)


@pytest.mark.checks("oracle", "mcts-dpo", by="hand-worked numbers")
def test_loss_of_a_pair_of_steps_by_hand():
    """Winner visited 3 times, loser once: a = 1 - 1/(1 + 1/3) = 1/4. Winner moved by 1, loser by -3: D = 4, with β = 0.5 z = 2,
    L = -(3/4) log σ(2) - (1/4) log σ(-2) = 3/4 · 0.126928 + 1/4 · 2.126928 = 0.626928; dL/dz = σ(2) - 3/4 = 0.130797."""
    on = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    start = torch.tensor([[-2.0, 0.0], [-1.0, -1.0]], dtype=torch.float64)
    logp = torch.tensor([[-1.0, 0.0], [-3.0, -2.0]], dtype=torch.float64)
    batch = siblings([1.0, -0.5], [3.0, 1.0]).replace(key=None, segment={})
    batch = batch.replace(
        **{name: getattr(batch, name)[:, :2] for name in ("action", "temperature", "step_reward", "bootstrap", "ended")}
    )
    batch = batch.replace(sampled=on, current=View(logp.requires_grad_()), behavior=View(start), reference={"start": View(start)},
                          proximal=View(start))  # fmt: skip
    found = gradient(mcts.with_knobs({"surrogate.beta": 0.5}), batch)
    assert float(found.loss) == pytest.approx(0.626928, abs=1e-6)
    slope = 0.5 * (1 / (1 + math.exp(-2)) - 0.75)
    assert found.logp.tolist() == [pytest.approx([slope, 0.0]), pytest.approx([-slope, -slope])]


def test_tokens_that_both_steps_begin_with_push_nowhere():
    """In a model they are the same number, and what one side gives them the other takes: ratios begin where steps differ."""
    found = gradient(mcts, siblings([1.0, -0.5], [3.0, 1.0]))
    assert float(found.logp[0, 0]) == -float(found.logp[1, 0]) != 0


def test_sides_are_by_value_then_visits_and_as_sure_as_visits_say():
    part = SiblingValues()
    assert sides(part, siblings([0.1, 0.9, 0.5], [1, 4, 2])) == [-0.6, 0.6, 0.0]  # a = 1 - 1/(1 + 1/4) = 0.2
    assert sides(part, siblings([0.9, 0.9, 0.1, 0.1], [1, 2, 1, 0])) == [0.0, 1.0, 0.0, -1.0]  # nobody went to the loser: certain
    assert sides(part, siblings([0.9, 0.1], [1, 3])) == [0.0, 0.0]  # a = 3/4, at most 1/2: nothing is known
    assert sides(part, siblings([0.9, 0.1], [0, 0])) == [1.0, -1.0]
    assert sides(part, siblings([0.4, 0.4], [5, 1])) == [0.0, 0.0]
    assert sides(part, siblings([math.nan, 0.4, 0.2], [9, 2, 0])) == [0.0, 1.0, -1.0]
    assert sides(part, siblings([math.nan, 0.4], [9, 2])) == [0.0, 0.0]
    assert sides(SiblingValues(smoothing=False), siblings([0.9, 0.1], [1, 3])) == [1.0, -1.0]
    every = SiblingValues(smoothing=False, losers=True)
    assert sides(every, siblings([0.1, 0.9, 0.5], [1, 1, 1])) == [-1.0, 1.0, -1.0]
    assert sides(SiblingValues(smoothing=False, gap=0.5), siblings([0.9, 0.4, 0.9, 0.3], [1] * 4, groups=2)) == [0, 0, 1.0, -1.0]


def test_steps_that_take_no_part_are_dropped():
    batch = siblings([0.1, 0.9, 0.5, math.nan, 0.2, 0.2], [1.0, 4.0, 2.0, 0.0, 1.0, 1.0], groups=2)
    assert kept(mcts, annotate(mcts, batch), late=True).nonzero().squeeze(1).tolist() == [0, 1]


def test_without_a_search_it_says_what_to_take():
    with pytest.raises(MethodError, match="rollout=Search"):
        SiblingValues()(random_batch(0))


# -- tp-llama and itool ------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "tp-llama")
@pytest.mark.checks("identity", "itool")
def test_put_back_they_are_their_parents():
    batch = siblings([0.5, 0.0, 1.0, 0.0, 0.3, 0.2, 0.2, 0.9], [3.0, 1.0, 2.0, 4.0] * 2, groups=2)
    side = torch.tensor([0, -1, 1, 0, 0, -1, 0, 1])
    batch = batch.replace(label={**batch.label, "side": side}, signal={**batch.signal, "visits": torch.ones(8)})
    assert_same(gradient(tp.derive(advantage=mcts.advantage), batch), gradient(mcts, batch), exact=True)
    one_loser = tp.with_knobs({"advantage.losers": False})
    assert_same(gradient(one_loser, batch), gradient(mcts.with_knobs({"advantage.smoothing": False}), batch), exact=True)
    assert_same(gradient(itool, batch), gradient(simpo, batch), exact=True)


@pytest.mark.checks("oracle", "tp-llama", by="hand-worked numbers")
def test_pairs_along_the_path_to_success_by_hand():
    """Depth first: step 0 and both behind it fail, step 1 goes on to 1.0, which fails, and 1.1, which is right.

    At the top, 1 (mean 1/2) wins against 0 (mean 0); behind 1, 1.1 wins against 1.0. Behind 0 nobody wins.
    """
    tree = SearchTree(tp.rollout.rule)
    rows: list[Node] = []
    for name, right in (("00", False), ("01", False), ("10", False), ("11", True)):
        for end in (1, 2):
            above = next((node for node in rows if node.answer() == tuple(name[: end - 1].encode())), tree.top)
            node, new = tree.add(above, name[end - 1 : end].encode(), 1.0, end == 2)
            rows += [node] if new else []
        tree.value(rows[-1], float(right))
        tree.back_up(rows[-1], float(right), right)
    assert tree.selected() is None, "a right answer ends it"
    contests = tree.contests(tp.rollout.contests)
    assert contests == [rows[5].parent, tree.top], "behind step 1 they are 1 apart, at the top 1/2"
    groups = {tree.top: 0, rows[0]: 1, rows[3]: 2}
    batch = siblings([node.quality for node in rows], [float(node.visits) for node in rows])
    batch = batch.replace(group=torch.tensor([groups[node.parent] for node in rows]))
    named = {"".join(map(chr, node.answer())): side for node, side in zip(rows, sides(tp.advantage, batch), strict=True)}
    assert named == {"0": -1.0, "1": 1.0, "00": 0.0, "01": 0.0, "10": -1.0, "11": 1.0}


@pytest.mark.checks("oracle", "itool", by="hand-worked numbers")
def test_pairs_of_clearly_different_value_by_hand():
    """0.9 against 0.6 is clear, 0.7 against 0.55 is not. Mean log-likelihoods -1 and -2 of two and one tokens: with β = 2 and γ = 1
    z = 2 · (-1 + 2) - 1 = 1, L = log(1 + e^-1) = 0.313262."""
    assert sides(itool.advantage, siblings([0.9, 0.6, 0.7, 0.55], [1.0] * 4, groups=2)) == [1.0, -1.0, 0.0, 0.0]
    batch = siblings([0.9, 0.6], [1.0, 1.0]).replace(key=None, segment={})
    columns = ("action", "temperature", "step_reward", "bootstrap", "ended")
    batch = batch.replace(**{name: getattr(batch, name)[:, :2] for name in columns})
    logp = torch.tensor([[-1.5, -0.5], [-2.0, 0.0]], dtype=torch.float64)
    on = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    batch = batch.replace(sampled=on, current=View(logp.requires_grad_()), behavior=View(logp.detach()),
                          proximal=View(logp.detach()), reference={})  # fmt: skip
    assert float(gradient(itool, batch).loss) == pytest.approx(math.log(1 + math.exp(-1)))


def test_easy_solutions_are_imitated_first():
    stages = {stage.name: stage.rollout for stage in itool.stages}
    assert list(stages) == ["easy", "sft"]
    bench = set_up(itool, "toolcall:arguments=4", "tiny:layers=1,width=32", replace(SIZES, tasks_per_step=40, steps=20))
    easy, every = (collect(bench.stage_rollouts[name], 1) for name in ("easy", "sft"))
    sizes = [[note["answer"].count("=") for note in rows.info] for rows in (easy, every)]
    assert len(sizes[0]) == len(sizes[1]) == 40 and max(sizes[0]) <= 3 < max(sizes[1])
    assert sum(sizes[0]) / 40 < 1.8 < 2.2 < sum(sizes[1]) / 40


@pytest.mark.parametrize("name", ["tp-llama", "itool"])
def test_a_run_imitates_and_then_searches(name: str, tmp_path):
    small = dict(model="tiny:layers=1,width=32", warm_start=0.0, tasks_per_step=4, samples_per_task=4, eval_problems=4, steps=7)
    run = up.train(name, "toolcall:arguments=1,functions=1", out=tmp_path / "run", **small)
    searched = ["contests" in record for record in run.metrics]
    *_, imitated, steps = last_steps(find(name), 7)
    assert searched == [False] * imitated + [True] * (steps - imitated) and 2 <= imitated <= 4
