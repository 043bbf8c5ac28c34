"""Rewrites: what is rewritten and how, what is dropped, and which answers join the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from upslope.evolve.rewriting import HARD, PolicyRewrites, Rewrites, TaskRewrites, with_prompt
from upslope.learners.data_context import LearnerContext
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.text_rows import join_text
from upslope.tasks import load_task
from upslope.tasks.text import Problem, TextTask
from upslope.types import Source, Trajectories, View, decision_keys

TASK = load_task("reverse:length=4")
PROBLEMS = TASK.sample(5, "train", np.random.default_rng(0))


def rows_of(rewards, groups, tasks, source=None, responses=None) -> Trajectories:
    count = len(rewards)
    on, paid = torch.ones(count, 2), torch.tensor(rewards)
    return Trajectories(
        sampled=on, reward=paid, components={"task": paid}, group=torch.tensor(groups), task=torch.tensor(tasks),
        behavior=View(-on), action=on.long(), temperature=on, key=decision_keys(torch.arange(count) + 1000 * int(source or 0), 2),
        label={} if source is None else {"source": torch.full((count,), int(source))},
        inputs=TextInputs(on.long(), on.long()), info=[{"response": text} for text in responses or ["x"] * count],
    )  # fmt: skip


class Context:
    """Writes as told, and answers each new problem with as many right answers as told, none by default."""

    task = TASK

    def __init__(self, right=(), texts=(), longest=999):
        self.right, self.texts, self.longest, self.written, self.asked = list(right), list(texts), longest, [], []

    def problems(self, rows):
        return [next(problem for problem in PROBLEMS if problem.id == task) for task in rows.task.tolist()]

    def fits(self, prompts):
        return [len(prompt) <= self.longest for prompt in prompts]

    def rng(self):
        return np.random.default_rng(0)

    def sample(self, turns):
        tasks = [turn.problem.id for turn in turns for _ in range(turn.samples)]
        if turns[0].role == "rewriter":
            self.written = turns
            return rows_of([0.0] * len(turns), range(len(turns)), tasks, Source.FURTHER, self.texts)
        self.asked = turns
        right = [*self.right, *[0] * (len(turns) - len(self.right))]
        rewards = [float(number < own) for turn, own in zip(turns, right, strict=True) for number in range(turn.samples)]
        groups = [100 + number for number, turn in enumerate(turns) for _ in range(turn.samples)]
        return rows_of(rewards, groups, tasks, Source.FURTHER)

    def join(self, batches):
        joining = LearnerContext.__new__(LearnerContext)
        joining.rollout = type("Joins", (), {"join": staticmethod(join_text)})
        return joining.join(batches)


def step(*right: int, samples: int = 4) -> Trajectories:
    """A step of groups with so many right answers, one to a problem."""
    rewards = [float(number < own) for own in right for number in range(samples)]
    numbers = [group for group in range(len(right)) for _ in range(samples)]
    return rows_of(rewards, numbers, [PROBLEMS[number].id for number in numbers])


def test_the_thresholds_by_hand():
    """Of 10 answers 0, 3, 4, 7 and 8 are right: hard, hard, medium, medium, and left alone."""
    context = Context()
    rows = Rewrites(TaskRewrites())(step(0, 3, 4, 7, 8, samples=10), context)
    old = [turn.problem.info["made_from"] for turn in context.asked]
    assert old == [[problem.prompt] for problem in PROBLEMS[:4]] and all(turn.samples == 10 for turn in context.asked)
    assert [turn.problem.difficulty for turn in context.asked] == [3, 3, 4, 4], "easier, and alike"
    assert rows.signal[HARD].reshape(5, 10)[:, 0].tolist() == [1, 1, 0, 0, 0] and rows.rows == 50


def test_hard_rewrites_come_first_and_only_those_with_signal_join():
    """Medium, hard, hard; of the rewrites, hard ones first, 1, 4 and 2 of 4 answers are right."""
    context = Context(right=[1, 4, 2])
    rows = Rewrites(TaskRewrites())(step(2, 0, 1), context)
    assert [turn.problem.info["made_from"][0] for turn in context.asked] == [PROBLEMS[n].prompt for n in (1, 2, 0)]
    further = ~rows.fresh()
    assert rows.group[further].tolist() == [100] * 4 + [102] * 4 and rows.fresh().tolist() == [True] * 12 + [False] * 8
    assert rows.signal[HARD][further].tolist() == [1] * 4 + [0] * 4 and rows.signal[HARD][:12].tolist() == [0] * 4 + [1] * 8
    assert len(rows.info) == rows.rows == 20
    told = Rewrites().metrics(rows.take_rows(rows.fresh()))
    assert told == {"hard_rows": pytest.approx(2 / 3), "rewritten": 3.0, "rewrites_dropped": 0.0, "rewrites_kept": 2.0}


@pytest.mark.parametrize(("which", "asked"), [("both", [1, 2, 0]), ("hard", [1, 2]), ("medium", [0]), ("none", [])])
def test_either_kind_can_be_left_out(which, asked):
    context = Context()
    rows = Rewrites(TaskRewrites(), which=which)(step(2, 0, 1, 4), context)
    assert [turn.problem.info["made_from"][0] for turn in context.asked] == [PROBLEMS[number].prompt for number in asked]
    assert rows.signal[HARD].sum() == 8, "what is hard is known all the same"


def test_the_policy_is_shown_problem_and_answer_and_the_answer_stays():
    context = Context(right=[2], texts=[" rzzzz=\n", "", PROBLEMS[2].prompt])
    rows = Rewrites(PolicyRewrites())(step(0, 0, 0), context)
    assert [turn.prompt for turn in context.written] == [TASK.guided(each, "", each.answer) for each in PROBLEMS[:3]]
    assert all(turn.learn == "nothing" and turn.samples == 1 for turn in context.written)
    (turn,) = context.asked
    assert (turn.prompt, turn.problem.answer, turn.learn) == ("rzzzz=", PROBLEMS[0].answer, "asked")
    told = Rewrites().metrics(rows.take_rows(rows.fresh()))
    assert told["rewritten"] == 1 and told["rewrites_dropped"] == 2, "one empty, one a problem of the step"


def test_a_rewrite_that_repeats_or_does_not_fit_is_dropped_and_counted():
    context = Context(texts=["new", "new", "much too long a text"], longest=12)
    rows = Rewrites()(step(0, 0, 0), context)
    assert [turn.prompt for turn in context.asked] == ["new"] and rows.rows == 12
    assert Rewrites().metrics(rows)["rewrites_dropped"] == 2
    none = Context(longest=3)
    assert Rewrites().metrics(Rewrites()(step(0), none))["rewrites_dropped"] == 1 and not none.written, "too long even to ask"


def test_sentences_and_messages():
    plain = Problem("What is 1+1?", "2")
    told = TextTask.guided(TASK, plain, PolicyRewrites().simplify, plain.answer)
    assert told.startswith("What is 1+1?\nDo not solve") and told.endswith("answer is:\n2")
    talk = Problem("user: hi", "2", messages=({"role": "system", "content": "s"}, {"role": "user", "content": "hi"}))
    found = with_prompt(talk, "ho")
    assert found.messages[1] == {"role": "user", "content": "ho"} and found.messages[0] == talk.messages[0]
    assert found.prompt != talk.prompt and "ho" in found.prompt and with_prompt(talk, "").prompt == ""
