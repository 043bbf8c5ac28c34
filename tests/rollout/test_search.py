"""Searching for answers: steps as rows, siblings as contests, and nothing sampled twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from rollout_calls import answered
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.rollout.search import Search
from upslope.rollout.self_evaluation import chance_of_right
from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import Turn, TurnNumbers
from upslope.types import Ended

SEARCH = replace(SIZES, samples_per_task=8, max_tokens=6)


def searching(always: bool = True, **knobs):
    """A learner of mcts-dpo with another search, on problems paid for letters."""
    method = find("mcts-dpo").with_knobs({f"rollout.{name}": value for name, value in knobs.items()})
    return learner(method, SEARCH, always=always)


def searched(made, count: int = 3, step: int = 1):
    problems = made.rollout.task.sample(count, "train", np.random.default_rng(0))
    return answered(made.rollout, problems, step, 0)


def places(rows) -> list[tuple]:
    return [(note["search"]["tree"], tuple(note["search"]["path"])) for note in rows.info]


def prompt(rows, row: int) -> list[int]:
    return rows.inputs.prompt[row][rows.inputs.prompt_mask[row] > 0].tolist()


def step_ids(rows, row: int) -> list[int]:
    return rows.action[row, : int(rows.lengths()[row])].tolist()


@pytest.fixture(scope="module")
def made():
    return searching()


@pytest.fixture(scope="module")
def rows(made):
    return searched(made)


def test_a_step_has_all_before_it_in_its_prompt_and_siblings_have_the_same(made, rows):
    where = {place: row for row, place in enumerate(places(rows))}
    assert len(where) == rows.rows, "no place of a tree is written twice"
    asked = made.policy.encode_all([made.rollout.asked[int(task)].model_input for task in rows.task])
    for (tree, path), row in where.items():
        before = prompt(rows, where[tree, path[:-1]]) + step_ids(rows, where[tree, path[:-1]]) if path[1:] else asked[row]
        assert prompt(rows, row) == before
    siblings = defaultdict(list)
    for row, group in enumerate(rows.group.tolist()):
        siblings[group].append(row)
    contests = [found for found in siblings.values() if len(found) > 1]
    assert contests
    for found in contests:
        assert len({tuple(prompt(rows, row)) for row in found}) == 1
        assert len({tuple(step_ids(rows, row)) for row in found}) == len(found), "the same step twice is one"


def test_no_beginning_is_sampled_twice(made, rows):
    """What the engine was asked to continue, each beginning once, and what it wrote: the rows and steps equal to one of them."""
    again, calls = searching(), []
    generate = again.rollout.engine.generate

    def counted(prompts, *arguments, **named):
        done = generate(prompts, *arguments, **named)
        calls.append((prompts, done.sampled.sum().item()))
        return done

    again.rollout.engine.generate = counted
    same = searched(again)
    distinct = [tuple(ids) for prompts, _ in calls for ids in dict.fromkeys(map(tuple, prompts))]
    assert len(distinct) == len(set(distinct))
    metrics = again.rollout.metrics()
    assert metrics["tokens"] == sum(written for _, written in calls) >= same.sampled.sum().item()
    assert torch.equal(same.action, rows.action)
    whole = sum(len(note["response"]) for note in same.info if note["finish"] != "paused")
    assert metrics["tokens"] < whole, "whole answers would have been more to sample"


def test_who_sampled_is_the_policy_in_that_context(made, rows):
    on = rows.sampled > 0
    assert torch.allclose(made.policy.evaluate(rows).logp[on], rows.behavior.logp[on], atol=1e-5)
    assert rows.fresh().all()


def test_visits_values_and_rewards_of_rows_are_those_of_the_tree(rows):
    for (tree, path), visits, value, note, reward in zip(
        places(rows), rows.signal["visits"].tolist(), rows.signal["value"].tolist(), rows.info, rows.reward.tolist(), strict=True
    ):
        told = note["search"]
        assert told["visits"] == visits and (value != value) == (told["value"] is None)
        below = [row for row, other in enumerate(places(rows)) if other[0] == tree and other[1][:-1] == path]
        if below and visits:
            assert visits == sum(rows.signal["visits"][row] for row in below)
        if note["finish"] != "paused":
            assert value == pytest.approx(2 * note["reward"] - 1) and reward == pytest.approx(note["reward"])
    ends = rows.ended.amax(1).tolist()
    assert all((end == Ended.PAUSED) == (note["finish"] == "paused") for end, note in zip(ends, rows.info, strict=True))


def test_numbers_depend_on_the_step_alone(made, rows):
    same, other = searched(made), searched(made, step=2)
    assert torch.equal(same.action, rows.action) and torch.equal(same.signal["visits"], rows.signal["visits"])
    assert other.action.shape != rows.action.shape or not torch.equal(other.action, rows.action)


def test_metrics_are_of_finished_answers():
    made = searching()
    found, metrics = searched(made), made.rollout.metrics()
    ended = [note["reward"] for note in found.info if note["finish"] != "paused"]
    assert metrics["finished_answers"] >= len(ended) and min(ended) <= metrics["reward"] <= max(ended)
    assert metrics["samples"] >= found.rows and "tokens" not in made.rollout.metrics()


def test_an_answer_that_comes_up_again_counts_again():
    """Depth first, four tries of whole answers at temperature zero: one row, four finished answers of its reward."""
    made = searching(select="depth-first", actions=4, depth=1, backup="mean")
    made.rollout.sampling = replace(made.rollout.sampling, temperature=0.0)
    found, metrics = searched(made, 1), made.rollout.metrics()
    assert found.rows == 1 and metrics["finished_answers"] == metrics["samples"] == 4
    assert metrics["reward"] == pytest.approx(found.info[0]["reward"]) and found.info[0]["search"]["visits"] == 4


def test_a_tree_ends_with_the_answers_asked_for_and_a_curriculum_may_ask_for_more_of_some():
    made = searching(exploration=50.0)
    problems = made.rollout.task.sample(2, "train", np.random.default_rng(0))
    rows = answered(made.rollout, problems, 1, 0, [2, 8])
    ended = [note["search"]["tree"] for note in rows.info if note["finish"] != "paused"]
    assert 2 <= ended.count(0) <= 3 and ended.count(1) >= 7
    with pytest.raises(UserError, match="rollout=Search"):
        answered(made.rollout, problems, 1, 0, [4, 4], limit=3)


def test_steps_end_with_the_separator_or_their_share_of_tokens_and_the_last_with_the_answer(rows):
    for row, note in enumerate(rows.info):
        depth = len(note["search"]["path"])
        step = note["response"][-len(step_ids(rows, row)) :]
        assert "\n" not in step[:-1] or depth == 3
        assert depth == 3 or len(step_ids(rows, row)) <= 2
        assert note["finish"] != "paused" or depth < 3


def test_depth_first_stops_at_a_right_answer():
    made = searching(select="depth-first", actions=3, backup="mean", outcome="correct", visits=64)
    task = made.rollout.task

    def starts(problems, responses):
        right = [text[:1].isalpha() for text in responses]
        return Scores([float(each) for each in right], right)

    task.score = starts
    rows = searched(made, 6)
    for tree in range(6):
        mine = [note for note in rows.info if note["search"]["tree"] == tree]
        ended = [note for note in mine if note["finish"] != "paused"]
        assert [bool(note["reward"]) for note in ended[:-1]] == [False] * (len(ended) - 1), "nothing behind a success"
        assert ended[-1]["reward"] == 1.0 or len(ended) == 8
        visited = {tuple(note["search"]["path"]): note["search"]["visits"] for note in mine}
        assert all(visited[path] for path in visited), "one step at a time, and each is gone on from"
    assert any(note["search"]["tree"] == tree and note["reward"] == 0.0 for tree in range(6) for note in rows.info)


def test_only_problems_that_a_first_answer_gets_wrong_are_searched():
    made = searching(always=False, failed_only=True)
    task, calls = made.rollout.task, []

    def score(problems, responses):
        calls.append(len(responses))
        right = [len(calls) == 1 and place % 2 == 0 for place in range(len(responses))]
        return Scores([float(each) for each in right], right)

    task.score = score
    rows = searched(made, 4)
    first, steps = rows.info[:4], Counter(rows.task[4:].tolist())
    assert not any("search" in note for note in first) and all("search" in note for note in rows.info[4:])
    assert [steps[task] for task in rows.task[[0, 2]].tolist()] == [0, 0], "what is solved is not searched"
    assert min(steps[task] for task in rows.task[[1, 3]].tolist()) > 4
    assert made.rollout.metrics()["constant_groups"] == 1.0, "all others are wrong"
    alone = [rows.group.tolist().count(int(group)) for group in rows.group[:4]]
    assert alone == [1] * 4, "nobody is compared with a first answer"


@pytest.mark.checks("identity", "itool")
@pytest.mark.checks("identity", "tp-llama")
def test_where_nothing_can_be_compared_nothing_is_learned():
    """All problems are solved at once, or every step is written the same again (a single chain): the weights stay."""
    solved, chain = searching(failed_only=True), searching()
    chain.rollout.sampling = replace(chain.rollout.sampling, temperature=0.0)
    solved.rollout.task.score = lambda problems, responses: Scores([1.0] * len(responses), [True] * len(responses))
    for made in (solved, chain):
        before = weights(made)
        found = made.step(1)
        assert found["contests"] == 0 and torch.equal(weights(made), before)


def test_the_policy_may_judge_steps_before_an_answer_is_finished():
    made = searching(evaluate="policy", visits=1)
    rows = searched(made)
    assert not rows.signal["value"].isnan().any(), "everything was judged"
    inner = [row for row, note in enumerate(rows.info) if len(note["search"]["path"]) == 1]
    problems = [made.rollout.asked[int(rows.task[row])] for row in inner]
    chances = chance_of_right(made.rollout, problems, [rows.info[row]["response"] for row in inner])
    unvisited = [place for place, row in enumerate(inner) if not rows.signal["visits"][row]]
    assert unvisited
    for place in unvisited:
        assert 0 < chances[place] < 1 and rows.signal["value"][inner[place]] == pytest.approx(chances[place], abs=1e-6)


def test_a_self_evaluation_is_how_likely_yes_is_beside_no(made):
    """By hand: sigmoid of the difference of the two words' log-likelihoods behind the question."""
    rollout, problem = made.rollout, Problem("rab=", "ba")
    asked = (
        "Here are a problem, its solution, and the beginning of an answer.\n\nProblem:\nrab=\n\nSolution:\nba\n\n"
        "Answer so far:\nb\n\nIs the answer correct so far? Say yes or no and nothing else.\n"
    )
    logp = []
    for word in ("yes", "no"):
        rows = rollout.written([Turn(asked, problem)], [word], TurnNumbers(1, "x"))
        logp.append(float(made.policy.evaluate(rows).logp[0, : len(word)].detach().sum()))
    assert chance_of_right(rollout, [problem], ["b"]) == [pytest.approx(1 / (1 + np.exp(logp[1] - logp[0])), abs=1e-5)]


def test_a_tree_gives_no_more_contests_than_wanted():
    few, many = searching(contests=1, exploration=50.0), searching(contests=0, exploration=50.0)
    for made in (few, many):
        searched(made)
    assert few.rollout.metrics()["contests"] <= 1 < many.rollout.metrics()["contests"]


def test_the_mean_of_finished_answers_has_no_place_for_a_judgement():
    with pytest.raises(MethodError, match="backup=values"):
        Search(evaluate="policy", backup="mean")


def test_when_a_first_step_is_decided_for():
    """64 visits and depth 3: 10 behind each later step, 44 from the beginning."""
    made = searching()
    assert [visit for visit in range(1, 65) if made.rollout._decides(visit)] == [44, 54, 64]
    made.rollout.plan = replace(made.rollout.plan, commit=False)
    assert not any(made.rollout._decides(visit) for visit in range(1, 65))


def test_turns_may_end_early(made):
    problem = Problem("rab=", "ba")
    rows = made.rollout.sample([Turn("rab=", problem, 6, limit=2)], TurnNumbers(1, "x"))
    assert rows.sampled.shape[1] <= 2
    free = made.rollout.sample([Turn("rab=", problem, 6)], TurnNumbers(1, "x"))
    until = next(text[1] for text in (note["response"] for note in free.info) if len(text) > 2)
    cut = made.rollout.sample([Turn("rab=", problem, 6, until=until)], TurnNumbers(1, "x"))
    for whole, part in zip(free.info, cut.info, strict=True):
        assert part["response"] == whole["response"].partition(until)[0] + until * (until in whole["response"])
    with pytest.raises(UserError, match="end with one text"):
        made.rollout.sample([Turn("rab=", problem, until="a"), Turn("rab=", problem)], TurnNumbers(1, "x"))
