"""Compared answers: what each row is told of who wins in its group, and who is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from upslope.errors import MethodError, TaskError
from upslope.evolve.comparing import BEATS_BEST, BEATS_WORST, WIN_RATE, WITH_SELF, Compared, columns_of
from upslope.methods import find
from upslope.objective import estimator
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.rewards.preferences import bradley_terry
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.types import Trajectories, View

TASK = load_task("reverse:length=3")
PROBLEMS = TASK.sample(3, "train", np.random.default_rng(0))
CIRCLE = [[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]]


class Circle:
    """Of the answers a, b and c each beats the next."""

    name, compares = "circle", True

    def compare(self, problem, responses):
        return [[CIRCLE["abc".index(one)]["abc".index(other)] for other in responses] for one in responses]


class Rewarded:
    compares = False


class Context:
    judge = None

    def __init__(self, task, seed: int = 0):
        self.task, self.seed = task, seed

    def problems(self, rows):
        return [next(problem for problem in PROBLEMS if problem.id == task) for task in rows.task.tolist()]


def step(*groups: dict[str, float] | list[tuple[str, float]]) -> Trajectories:
    """Groups of answers with their rewards, one to a problem."""
    pairs = [list(group.items()) if isinstance(group, dict) else group for group in groups]
    numbers = [number for number, group in enumerate(pairs) for _ in group]
    paid = torch.tensor([reward for group in pairs for _, reward in group])
    on = torch.ones(len(paid), 1)
    tasks = torch.tensor([PROBLEMS[number].id for number in numbers])
    info = [{"response": text} for group in pairs for text, _ in group]
    return Trajectories(on, paid, torch.tensor(numbers), tasks, View(-on), components={"task": paid}, info=info)


def test_win_rates_by_hand():
    """Of a, a and b, where a beats b by 0.9, a wins (0.5 + 0.9) / 2 = 0.7 of the others and b 0.1; with itself 0.633 and 0.233."""
    rows = Compared()(step([("a", 0.0), ("a", 0.0), ("b", 0.0)], {"c": 0.0}), Context(Circle()))
    assert rows.signal[WIN_RATE].tolist() == pytest.approx([0.7, 0.7, 0.1, 0.5])
    assert rows.signal[WITH_SELF].tolist() == pytest.approx([1.9 / 3, 1.9 / 3, 0.7 / 3, 0.5])
    assert rows.signal[BEATS_BEST].tolist() == pytest.approx([0.5, 0.5, 0.1, 0.5])
    assert rows.signal[BEATS_WORST].tolist() == pytest.approx([0.9, 0.9, 0.5, 0.5])
    # The best of the first group beats its worst by 0.9, the one of the second only itself: (0.4 + 0) / 2.
    assert Compared().metrics(rows) == {"preference_gap": pytest.approx(0.2)}


def test_a_circle_has_no_best_answer():
    rows = Compared()(step({"a": 1.0, "b": 0.0, "c": 0.0}), Context(Circle()))
    assert rows.signal[WIN_RATE].tolist() == pytest.approx([0.5] * 3)
    assert rows.reward.tolist() == [1, 0, 0]  # the task's own stays


def test_the_win_rates_of_a_group_are_even_in_all():
    """Whatever is preferred, they sum to K / 2, with and without oneself."""
    said = np.triu(np.random.default_rng(1).random((8, 8)), 1)
    found = columns_of(said + np.tril(1 - said.T, -1) + np.eye(8) / 2)
    assert found[WIN_RATE].sum() == pytest.approx(4) and found[WITH_SELF].sum() == pytest.approx(4)
    assert np.argsort(found[WIN_RATE]).tolist() == np.argsort(found[WITH_SELF]).tolist()


def test_without_comparisons_the_reward_decides():
    rows = step({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 2.0})
    found = Compared(scale=0.5)(rows, Context(Rewarded()))
    first, second = bradley_terry([1.0, 0.0], 0.5)[0, 1], bradley_terry([0.0, 2.0], 0.5)[0, 1]
    assert found.signal[WIN_RATE].tolist() == pytest.approx([first, 1 - first, second, 1 - second])
    asked = Compared(by="reward", scale=0.5)(rows, Context(Circle()))
    assert torch.equal(asked.signal[WIN_RATE], found.signal[WIN_RATE])
    turned = Compared(scale=0.5, noise=1.0)(rows, Context(Rewarded()))
    assert torch.allclose(turned.signal[WIN_RATE], 1 - found.signal[WIN_RATE])


def test_win_rates_can_take_the_place_of_the_reward():
    """A penalty of 0.25 that another reward took stays; what the task paid goes."""
    rows = step({"a": 1.0, "b": 0.0})
    rows = Compared(pays=True)(rows.replace(reward=rows.reward - 0.25), Context(Circle()))
    assert rows.reward.tolist() == pytest.approx([0.65, -0.15])
    assert rows.verdict().tolist() == pytest.approx([0.9, 0.1]) and rows.components["task"].tolist() == [1, 0]


class NeedsWins(ConstantAdvantage):
    def needs(self):
        return frozenset({"signal.win_rate"})


def test_parts_that_need_wins_are_refused_without_them():
    rloo = find("rloo").derive(advantage=NeedsWins())
    provides = {"group", "proximal.logp", "current.logp"}
    with pytest.raises(MethodError, match=r"needs 'signal\.win_rate'"):
        estimator.check(rloo, provides)
    estimator.check(rloo.derive(data=Compared()), provides)


def test_a_task_that_does_not_compare_is_refused_where_it_must():
    method = find("rloo").derive(data=Compared(by="task"))
    with pytest.raises(TaskError, match=r"rloo needs comparisons \(data.0\), and 'reverse' gives none.*--judge"):
        set_up(method, "reverse", "tiny:layers=1,width=32", Settings())


def test_a_step_of_a_run_compares_by_the_reward():
    """Through the learner: win rates of rewards 0 and 1 order the group as the rewards do, so the gradient points the same way."""
    from small_learner import SIZES, learner

    made = learner(find("rloo").derive(data=Compared()), SIZES)
    metrics = made.step(1)
    rows = made.last
    assert rows is not None and metrics["preference_gap"] > 0
    for group in rows.group.unique():
        mine = rows.group == group
        paid, won = rows.reward[mine], rows.signal[WIN_RATE][mine]
        assert won.sum().item() == pytest.approx(len(won) / 2, abs=1e-5)
        assert torch.equal(torch.argsort(paid, stable=True), torch.argsort(won, stable=True))
