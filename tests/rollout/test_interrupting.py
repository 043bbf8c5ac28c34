"""Answers that go on with newer weights: nothing changes while the weights do not, and every token knows who drew it."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from rollout_calls import same_rows

import upslope as up
from upslope.errors import UserError
from upslope.methods import find
from upslope.rollout.replica import Replica
from upslope.rollout.under_way import unpacked
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import RolloutRequest

SETTINGS = Settings(steps=4, tasks_per_step=3, samples_per_task=4, max_tokens=20, workers=1, shares=1, max_staleness=1, pace="free")


def made(interrupt: bool):
    """A rollout that writes answers of twenty tokens, eight at a time."""
    settings = dataclasses.replace(SETTINGS, interrupt=interrupt)
    return set_up(find("asyncflow"), "reverse:length=2", "tiny:layers=1,width=16", settings).rollout


def assignment_of(rollout, version: int = 0):
    return rollout._decided(RolloutRequest(1, version=version)).cut(1)[0]


def test_with_the_same_weights_an_interruption_changes_nothing_but_rounding():
    whole, piecewise = made(False), made(True)
    assert piecewise.interrupt_every == 8 and whole.interrupt_every == 0
    one, assignment, windows = whole.fulfil(assignment_of(whole)), assignment_of(piecewise), 0
    while not assignment.begun or any(each["finish"] == "paused" for each in assignment.begun):
        assignment, windows = piecewise.extended(assignment), windows + 1
    two = piecewise.fulfil(assignment)
    assert windows == 3 and {len(each["tokens"]) for each in assignment.begun} - {8, 16, 20}, "answers end inside windows too"
    assert torch.equal(one.action, two.action) and torch.equal(one.sampled, two.sampled) and torch.equal(one.ended, two.ended)
    assert torch.equal(one.reward, two.reward) and torch.equal(one.group, two.group) and one.info == two.info
    torch.testing.assert_close(one.behavior.logp, two.behavior.logp, rtol=0, atol=1e-5)


def test_every_token_has_the_version_and_the_chance_of_the_weights_that_drew_it():
    rollout = made(True)
    policy = rollout.policy
    worker = Replica(policy, {"": rollout})
    torch.manual_seed(0)
    old = {name: tensor.clone() for name, tensor in policy.weights().items()}
    new = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in old.items()}
    worker.load(old, 3)
    asked = assignment_of(rollout, version=3)
    begun = worker.answer(asked).data
    assert begun["version"] == 3 and "rows" not in begun
    worker.load(new, 4)
    further = dataclasses.replace(asked, version=4, begun=tuple(begun["begun"]))
    again = copy.deepcopy(further)
    while "rows" not in (answer := worker.answer(further).data):
        further = dataclasses.replace(further, begun=tuple(answer["begun"]))
    rows = unpacked(answer["rows"])
    place = torch.arange(rows.sampled.shape[1]).expand_as(rows.sampled)
    on = rows.sampled > 0
    assert torch.equal(rows.version[on], torch.where(place < 8, 3, 4)[on])
    for version, weights in ((3, old), (4, new)):
        policy.load_weights(weights)
        with torch.no_grad():
            said = policy.evaluate(rows, frozenset()).logp
        mine = on & (rows.version == version)
        torch.testing.assert_close(rows.behavior.logp[mine], said[mine], rtol=0, atol=1e-5)
        assert not torch.allclose(rows.behavior.logp[on & ~mine], said[on & ~mine], atol=1e-3), "the weights must differ"
    # Whoever takes over from a lost worker writes the same.
    worker.load(new, 4)
    while "rows" not in (answer := worker.answer(again).data):
        again = dataclasses.replace(again, begun=tuple(answer["begun"]))
    assert same_rows(rows, unpacked(answer["rows"]))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(UserError, match="--pace exact promises"):
        up.train("asyncflow", "reverse", workers=1, max_staleness=1, interrupt=True)
    with pytest.raises(UserError, match="from beginning to end"):
        up.train("t-ppo+asyncflow", "reverse", workers=1, max_staleness=1, pace="free", interrupt=True)


@pytest.mark.slow
def test_a_run_that_interrupts_ends_and_no_row_is_too_old(tmp_path):
    sizes = {"model": "tiny:layers=1,width=16", "steps": 6, "tasks_per_step": 3, "samples_per_task": 4, "max_tokens": 24,
             "warm_start": 0.0, "eval_problems": 4, "threads": 1}  # fmt: skip
    run = up.train(
        "asyncflow", "reverse:length=2", **sizes, workers=1, max_staleness=2, pace="free", interrupt=True, out=tmp_path / "run"
    )
    assert len(run.metrics) == 6 and max(step["oldest"] for step in run.metrics) <= 2
    assert all(step["tokens"] > 0 for step in run.metrics) and "faults" not in run.summary
