"""Guidance: who is helped, how far up the ladder, and what becomes of the answers."""

from __future__ import annotations

import pytest
import torch

from upslope.errors import MethodError
from upslope.evolve.guidance import GUIDED, Guidance
from upslope.evolve.hints import AnswerShown, TaskHints
from upslope.learners.data_context import LearnerContext
from upslope.objective.filter.replaced import Replaced
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.text_rows import join_text
from upslope.tasks import load_task
from upslope.tasks.text import Problem
from upslope.types import Source, Trajectories, View, decision_keys

TASK = load_task("reverse")
PROBLEMS = [Problem("rabcd=", "dcba"), Problem("refgh=", "hgfe"), Problem("rijkl=", "lkji")]


def rows_of(rewards, groups, tasks, source=None) -> Trajectories:
    count = len(rewards)
    on = torch.ones(count, 2)
    label = {} if source is None else {"source": torch.full((count,), int(source))}
    paid = torch.tensor(rewards)
    return Trajectories(
        sampled=on, reward=paid, components={"task": paid}, group=torch.tensor(groups), task=torch.tensor(tasks),
        behavior=View(-on), action=on.long(), temperature=on, label=label,
        key=decision_keys(torch.arange(count) + 1000 * int(source or 0), 2),
        inputs=TextInputs(on.long(), on.long()), info=[{"response": "x"} for _ in rewards],
    )  # fmt: skip


class Context:
    """Answers as told: right from a level on, by problem."""

    task = TASK

    def __init__(self, right_from: dict[str, int], hints=None):
        self.right_from, self.hints, self.calls = right_from, hints, []

    def problems(self, rows):
        return [next(problem for problem in PROBLEMS if problem.id == task) for task in rows.task.tolist()]

    def sample(self, turns):
        self.calls.append(turns)
        each = [turn for turn in turns for _ in range(turn.samples)]
        rewards = []
        for turn in each:
            hint = turn.prompt.split(":")[0]
            rewards.append(float(len(hint) >= self.right_from.get(turn.problem.prompt, 99)))
        return rows_of(rewards, [turn.group for turn in each], [turn.problem.id for turn in each], Source.FURTHER)

    def join(self, batches):
        joining = LearnerContext.__new__(LearnerContext)
        joining.rollout = type("Joins", (), {"join": staticmethod(join_text)})
        return joining.join(batches)


def step(*groups) -> Trajectories:
    """A step of groups of these rewards, one to a problem."""
    rewards = [reward for group in groups for reward in group]
    numbers = [number for number, group in enumerate(groups) for _ in group]
    return rows_of(rewards, numbers, [PROBLEMS[number].id for number in numbers])


def kept(rows) -> Trajectories:
    keep = Replaced()(rows)
    return rows.take_rows(keep)


def test_a_group_with_one_success_is_never_helped():
    context = Context({})
    rows = Guidance()(step([0.0, 1.0], [0.0, 0.0]), context)
    assert {turn.problem.prompt for turns in context.calls for turn in turns} == {"refgh="}
    assert kept(rows).group.tolist() == [0, 0, 1, 1] and rows.signal["replaced"].tolist() == [0, 0, 1, 1, 0, 0]


def test_the_ladder_is_climbed_until_an_answer_is_right_and_all_are_replaced():
    """Solutions of 4 letters: 1, 2 and 3 of them. The second problem is right from 2 letters on, the third never."""
    context = Context({"refgh=": 2})
    rows = Guidance()(step([1.0, 0.0], [0.0, 0.0], [0.0, 0.0]), context)
    asked = [[turn.prompt for turn in turns] for turns in context.calls]
    assert asked == [["h:refgh=", "l:rijkl="], ["hg:refgh=", "lk:rijkl="], ["lkj:rijkl="]]
    learned = kept(rows)
    assert learned.group.tolist() == [0, 0, 1, 1, 2, 2] and learned.reward.tolist() == [1, 0, 1, 1, 0, 0]
    assert learned.signal["hint_level"].tolist() == [0, 0, 2, 2, 3, 3]
    told = Guidance().metrics(rows.take_rows(rows.fresh()))
    assert told == {"guided_groups": pytest.approx(2 / 3), "hint_worked": 0.5, "hint_level": 2.5}
    assert rows.fresh().sum() == 6, "what failed is still there to be remembered"


def test_the_weakest_hint_that_works_takes_one_place():
    guidance = Guidance(hints=TaskHints(), replace="one")
    context = Context({"refgh=": 3})
    rows = guidance(step([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), context)
    (turns,) = context.calls
    assert [turn.prompt for turn in turns] == [f"{p.answer[:n]}:{p.prompt}" for p in PROBLEMS[:2] for n in (1, 2, 3, 4)]
    learned = kept(rows)
    own = learned.group == 1
    assert learned.reward[own].sum() == 1 and own.sum() == 3, "G - 1 failures and one success"
    assert learned.signal["hint_level"][own].max() == 3 and not learned.reward[~own].any() and (~own).sum() == 3
    assert rows.signal["replaced"].tolist() == [0, 0, 0, 1, 0, 0, 0], "the first answer of the group that was helped"


def test_explanations_stand_aside_and_only_those_that_are_right():
    guidance = Guidance(hints=AnswerShown(), replace="none", learn="problem", samples=2, aside=True)
    context = Context({"rabcd=": 4})
    rows = guidance(step([0.0, 0.0], [0.0, 0.0]), context)
    assert all(turn.learn == "problem" and turn.samples == 2 for turn in context.calls[0])
    assert rows.rows == 4 and kept(rows).rows == 4 and rows.aside[GUIDED].group.tolist() == [0, 0]
    assert GUIDED not in guidance(step([0.0, 0.0]), Context({})).aside


def test_always_adds_as_many_as_the_group_has():
    guidance = Guidance(hints=AnswerShown(), trigger="always", replace="none", learn="problem")
    rows = guidance(step([1.0, 1.0, 0.0]), Context({"rabcd=": 4}))
    assert rows.rows == 6 and rows.group.tolist() == [0] * 6 and rows.reward.tolist() == [1, 1, 0, 1, 1, 1]
    assert rows.fresh().tolist() == [True] * 3 + [False] * 3


def test_nothing_is_asked_before_it_begins():
    context = Context({})
    early, late = step([0.0, 0.0]).replace(progress=0.2), step([0.0, 0.0]).replace(progress=0.5)
    assert kept(Guidance(begin=0.5)(early, context)).rows == 2 and not context.calls
    Guidance(begin=0.5)(late, context)
    assert context.calls
    never = Context({})
    Guidance(begin=1.0)(late.replace(progress=1.0), never)
    assert not never.calls


def test_a_problem_without_hints_is_left_as_it_is():
    class Silent(Context):
        task = type("Quiet", (), {"hints": staticmethod(lambda problem: ())})()

    context = Silent({})
    rows = Guidance(hints=TaskHints(), replace="one")(step([0.0, 0.0]), context)
    assert kept(rows).rows == 2 and not context.calls


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(MethodError, match="one or the other"):
        Guidance(replace="one", aside=True)
