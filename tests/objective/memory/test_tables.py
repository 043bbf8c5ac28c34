"""Memories of tasks: tables that stay sorted, and what each of them keeps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from batches import random_batch

from upslope.errors import MethodError
from upslope.objective.base import Memory, State
from upslope.objective.memory import BetaPosterior, CategoryGain, LastSuccess
from upslope.objective.memory.table import empty, looked_up, merged
from upslope.runtime.files import load_state, save_state
from upslope.types import Batch


def visit(rewards: list[float], tasks: list[int], category: list[int] | None = None, advantage: list[float] | None = None) -> Batch:
    """One answer to each of these tasks."""
    batch = random_batch(seed=0, groups=len(rewards), samples=1)
    given = None if advantage is None else batch.per_decision(torch.tensor(advantage, dtype=torch.float64))
    label = {} if category is None else {"category": torch.tensor(category)}
    reward = torch.tensor(rewards, dtype=torch.float64)
    return batch.replace(reward=reward, task=torch.tensor(tasks), label=label, advantage=given)


def after(memory: Memory, *visits: Batch) -> State:
    state = memory.init()
    for batch in visits:
        state = memory.update(state, batch, {})
    return state


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_a_dictionary(seed):
    random = torch.Generator().manual_seed(seed)
    state, known = empty("a", "b"), {}
    for _ in range(12):
        tasks = torch.unique(torch.randint(-30, 30, (int(torch.randint(0, 9, (1,), generator=random)),), generator=random))
        a, b = torch.rand(2, len(tasks), generator=random, dtype=torch.float64)
        before = {name: column.clone() for name, column in state.items()}
        grown = merged(state, tasks, {"a": a, "b": b})
        assert all(torch.equal(state[name], before[name]) for name in before), "what was known stays as it was"
        state = grown
        known |= {int(task): (float(x), float(y)) for task, x, y in zip(tasks, a, b, strict=True)}
        assert state["task"].tolist() == sorted(known)
        asked = torch.tensor([*sorted(known), 99, -99])
        columns, seen = looked_up(state, asked, {"a": 0.25, "b": -1.0})
        expected = [known.get(int(task), (0.25, -1.0)) for task in asked]
        assert list(zip(columns["a"].tolist(), columns["b"].tolist(), strict=True)) == expected
        assert seen.tolist() == [True] * len(known) + [False] * 2


# -- the posterior of MoPPS ------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "mopps", by="exact counts")
def test_without_forgetting_the_posterior_mean_counts():
    memory = BetaPosterior()
    state = after(memory, visit([1, 0, 0, 1, 1], [7, 7, 7, 7, 8]), visit([1, 1], [7, 8]))
    alpha, beta = memory.recall(state, torch.tensor([7, 8, 9])).unbind(-1)
    assert alpha.tolist() == [1 + 3, 1 + 2, 1] and beta.tolist() == [1 + 2, 1, 1]
    assert (alpha / (alpha + beta)).tolist() == pytest.approx([(1 + 3) / (2 + 5), (1 + 2) / (2 + 2), 0.5])


@pytest.mark.checks("oracle", "mopps", by="hand-worked numbers")
def test_forgetting_goes_towards_the_prior():
    memory = BetaPosterior(lam=0.5, successes=2.0, failures=1.0)
    state = after(memory, visit([1, 1, 1, 0], [3] * 4))
    # alpha = 0.5 * 2 + 0.5 * 2 + 3, beta = 0.5 * 1 + 0.5 * 1 + 1.
    assert memory.recall(state, torch.tensor([3])).tolist() == [[5.0, 2.0]]
    state = memory.update(state, visit([0, 0.25], [3, 4]), {})
    # alpha = 0.5 * 5 + 0.5 * 2, beta = 0.5 * 2 + 0.5 * 1 + 1; the other task starts from the prior.
    assert memory.recall(state, torch.tensor([3, 4])).tolist() == [[3.5, 2.5], [2.25, 1.75]]
    cut = after(BetaPosterior(), visit([-3.0, 7.0], [1, 2]))
    assert cut["success"].tolist() == [1.0, 2.0] and cut["failure"].tolist() == [2.0, 1.0], "rewards are cut to [0, 1]"


def test_it_follows_a_population_that_moves():
    """Spearman's correlation between posterior mean and true rate, while the rates of 256 tasks drift."""
    for seed in range(3):
        found = {}
        for lam in (1.0, 0.5):
            random = torch.Generator().manual_seed(seed)
            memory, tasks = BetaPosterior(lam=lam), torch.arange(256)
            state, logit = memory.init(), 3 * torch.randn(256, generator=random)
            for _ in range(40):
                logit = logit + 0.5 * torch.randn(256, generator=random)
                answers = (torch.rand(256, 8, generator=random) < logit.sigmoid().unsqueeze(1)).double()
                state = memory.update(state, visit(answers.flatten().tolist(), tasks.repeat_interleave(8).tolist()), {})
            alpha, beta = memory.recall(state, tasks).unbind(-1)
            ranks = torch.stack([(alpha / (alpha + beta)).argsort().argsort(), logit.argsort().argsort()]).double()
            found[lam] = float(torch.corrcoef(ranks)[0, 1])
        assert found[0.5] > 0.9 and found[0.5] > found[1.0] + 0.02


# -- the others ------------------------------------------------------------------------------------------------------------


def test_the_last_visit_counts_alone():
    memory = LastSuccess()
    state = after(memory, visit([1, 1, 0, 1], [5, 5, 5, 6]), visit([0, 0, 0.5, 3.0], [6, 6, 2, 1]))
    rate = memory.recall(state, torch.tensor([5, 6, 2, 1, 9])).tolist()
    assert rate[:4] == pytest.approx([2 / 3, 0, 0.5, 1]) and math.isnan(rate[4])


@pytest.mark.checks("oracle", "sec", by="hand-worked numbers")
def test_a_categorys_gain_is_the_moving_mean_of_absolute_advantages():
    memory = CategoryGain(rate=0.25, start=2.0)
    batch = visit([0] * 4, [1, 2, 3, 4], category=[70, 70, 20, 70], advantage=[1.0, -0.5, 3.0, 0.0])
    state = after(memory, batch)
    # 0.75 * 2 + 0.25 * (1 + 0.5 + 0) / 3, and 0.75 * 2 + 0.25 * 3.
    assert memory.recall(state, torch.tensor([70, 20, 5])).tolist() == pytest.approx([1.625, 2.25, 2.0])
    state = memory.update(state, visit([0], [9], category=[20]), {})
    assert memory.recall(state, torch.tensor([70, 20])).tolist() == pytest.approx([1.625, 0.75 * 2.25]), "nothing was learned from"
    with pytest.raises(MethodError, match="category"):
        memory.update(state, visit([0], [9]), {})


@pytest.mark.parametrize("memory", [BetaPosterior(lam=0.5), LastSuccess(), CategoryGain()])
def test_a_memory_goes_through_a_checkpoint(memory, tmp_path: Path):
    full = after(memory, visit([1.0, 0.0], [2**62 + 1, 5], category=[3, 2**62], advantage=[1.0, 2.0]))
    for state in (memory.init(), full):
        save_state(tmp_path, "parts", state)
        back = load_state(tmp_path, "parts")
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
