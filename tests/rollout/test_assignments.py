"""Decide here, sample anywhere: an assignment is plain data, and its rows are a function of it and of the weights."""

from __future__ import annotations

import json

import pytest
import torch
from rollout_calls import collect, same_rows

from upslope.methods import find
from upslope.runtime.files import load_state, save_state
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.problem_text import text_of
from upslope.tasks.text import Problem
from upslope.types import Assignment, RolloutRequest

SIZES = Settings(tasks_per_step=4, samples_per_task=4, warm_start=0.0, eval_problems=4, steps=10)
MODEL = "tiny:layers=1,width=16"
ROLLOUTS = {
    "plain": ("grpo", "reverse:length=3"),
    "vine": ("polychromic", "pairs"),
    "windows": ("t-ppo", "reverse:length=5"),
    "search": ("mcts-dpo", "reverse:length=3"),
    "answers": ("sft", "reverse:length=3"),
    "documents": ("cap-cpt", "rulebook"),
    "pairs": ("dpo", "reverse:length=3"),
    "labels": ("kto", "reverse:length=3"),
    "both orders": ("pair-rm", "reverse:length=3"),
}


def rollout(kind: str, **changes):
    method, task = ROLLOUTS[kind]
    settings = Settings(
        **{**{"tasks_per_step": 4, "samples_per_task": 4, "warm_start": 0.0, "eval_problems": 4, "steps": 10}, **changes}
    )
    return set_up(find(method), task, MODEL, settings).rollout


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_an_assignment_is_fulfilled_twice_alike_after_others_and_by_another_rollout(kind):
    one, other = rollout(kind), rollout(kind)
    (assignment,) = one.assign(RolloutRequest(3))
    first = one.fulfilled(assignment)
    one.fulfilled(one.assign(RolloutRequest(4))[0])
    again = one.fulfilled(assignment)
    sent = Assignment.from_table(json.loads(json.dumps(assignment.table())))
    assert sent == assignment
    elsewhere = other.fulfilled(sent)
    for each in (again, elsewhere):
        kept = each.rows.replace(inputs=type(each.rows.inputs)(each.rows.inputs.prompt, each.rows.inputs.prompt_mask))
        wanted = first.rows.replace(inputs=type(kept.inputs)(first.rows.inputs.prompt, first.rows.inputs.prompt_mask))
        assert same_rows(kept, wanted) and each.told == first.told
        assert each.rows.info == first.rows.info


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_shares_hold_the_same_problems_in_the_same_order_and_groups_that_are_nobody_elses(kind):
    whole, cut = rollout(kind), rollout(kind, shares=2)
    one, two = collect(whole, 3), collect(cut, 3)
    assert set(one.task.tolist()) == set(two.task.tolist())
    pieces = cut.assign(RolloutRequest(4))
    assert len(pieces) == 2
    rows = [cut.fulfilled(piece).rows for piece in pieces]
    if kind != "windows":  # whose groups are named when rows are taken
        assert not set(rows[0].group.tolist()) & set(rows[1].group.tolist())
    if kind not in ("search", "labels"):  # what these draw depends on who stands beside
        assert one.rows == two.rows


@pytest.mark.parametrize("kind", ["plain", "vine", "windows"])
def test_cutting_a_step_changes_no_token_and_log_probabilities_by_rounding_only(kind):
    one, two = collect(rollout(kind), 3), collect(rollout(kind, shares=3), 3)
    order = [torch.argsort(rows.task * 31 + rows.action[:, :1].squeeze(1), stable=True) for rows in (one, two)]
    one, two = one.take_rows(order[0]), two.take_rows(order[1])
    assert sorted(map(tuple, one.action.tolist())) == sorted(map(tuple, two.action.tolist()))
    assert torch.allclose(one.behavior.logp.sum(), two.behavior.logp.sum(), atol=1e-4)


def test_pieces_add_up_to_the_whole():
    whole = Assignment(
        2, 1, drawn=9, numbers=tuple(range(7)), samples=(1, 2, 3, 4, 5, 6, 7), notes=tuple({"n": n} for n in range(7))
    )
    pieces = whole.cut(3)
    assert [piece.numbers for piece in pieces] == [(0, 1), (2, 3), (4, 5, 6)]
    assert [piece.first for piece in pieces] == [0, 2, 4] and [piece.first_row for piece in pieces] == [0, 3, 10]
    assert {(piece.problems, piece.rows, piece.shares) for piece in pieces} == {(7, 28, 3)}
    assert [piece.first_group for piece in pieces] == [1_000_000, 1_333_333, 1_666_666]
    assert len(whole.cut(20)) == 7 and len(whole.cut(1)) == 1
    assert pieces[1].row_notes == [{"n": 2}] * 3 + [{"n": 3}] * 4


def test_problems_that_no_draw_has_travel_as_text():
    made = rollout("plain")
    own = Problem("reverse xyz", "zyx", {"made_by": "hand"})
    (assignment,) = Assignment(1, drawn=2, numbers=(1, -1), samples=(1, 1), made=(text_of(own),)).cut(1)
    drawn, found = made.problems_of(assignment)
    assert found == own and drawn == made._drawn(1, 0, 2)[0][1]
    assert made.fulfil(assignment).task.tolist() == [drawn.id, own.id]


def test_what_is_sampled_ahead_stays_with_a_checkpoint(tmp_path):
    made, other = rollout("plain", max_staleness=2, uncorrected=True), rollout("plain", max_staleness=2, uncorrected=True)
    for step in (5, 6):
        made.assign(RolloutRequest(step, version=4))
    save_state(tmp_path, "rollout", made.state())
    other.load_state(load_state(tmp_path, "rollout"))
    assert other.assigned(5) and other.assigned(6) and not other.assigned(7)
    for step in (5, 6):
        one, two = made.take(step), other.take(step)
        assert same_rows(one, two) and one.info == two.info and one.version.unique().tolist() == [4]
        assert other.asked.keys() == made.asked.keys()
    assert made.state() == {} and not other.assigned(5)


def test_rows_without_a_date_are_of_now():
    rows = collect(rollout("plain"), 1)
    assert rows.version is None and int(rows.age().sum()) == 0
    dated = rows.replace(version=torch.full_like(rows.sampled, 3, dtype=torch.int64), now=5)
    assert set(dated.age()[rows.sampled > 0].tolist()) == {2} and not dated.age()[rows.sampled == 0].any()
    joined = rollout("plain").join([dated, rows.replace(now=5)])
    assert joined.age()[: rows.rows].max() == 2 and joined.age()[rows.rows :].max() == 0
