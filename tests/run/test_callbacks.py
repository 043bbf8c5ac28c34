"""Callbacks: what they are told and when, how they end a run early, and what becomes of a run whose callback fails."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import Remark, UserError

SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 4, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:callbacks are objects")


class Notes:
    """Writes down all it is told."""

    def __init__(self):
        self.told: list[tuple] = []
        self.threads: set[str] = set()

    def note(self, *what: object) -> None:
        self.told.append(what)
        self.threads.add(threading.current_thread().name)

    def on_step(self, step, metrics):
        self.note("step", step, metrics.get("reward"))

    def on_evaluation(self, step, result):
        self.note("evaluation", step, result["score"])

    def on_checkpoint(self, step, path):
        assert (path / "digests.json").is_file()
        self.note("checkpoint", step, path.name)

    def on_end(self, summary):
        self.note("end", summary["steps"], summary["score_after"])


def test_a_callback_is_told_everything_in_the_thread_that_trains(tmp_path: Path):
    notes = Notes()
    run = up.train("grpo", **SMALL, eval_every=2, out=tmp_path / "run", callbacks=[notes])
    assert notes.threads == {threading.current_thread().name}
    by_kind = {kind: [step for told, step, _ in notes.told if told == kind] for kind in ("step", "evaluation", "checkpoint", "end")}
    assert by_kind == {"step": [1, 2, 3, 4], "evaluation": [0, 2, 4], "checkpoint": [0, 2, 4], "end": [4]}
    assert [value for kind, _, value in notes.told if kind == "step"] == [record["reward"] for record in run.metrics]
    assert notes.told[-1] == ("end", 4, run.summary["score_after"])


class Stops(up.Callback):
    """Ends the run in one of the ways there are."""

    def __init__(self, how: str):
        self.how = how

    def on_step(self, step, metrics):
        if step == 2 and self.how == "False":
            return False
        if step == 2 and self.how == "on_step":
            raise up.StopTraining("the reward is good enough")
        return None

    def on_checkpoint(self, step, path):
        if step == 2 and self.how == "on_checkpoint":
            raise up.StopTraining


@pytest.mark.parametrize(
    ("how", "steps", "told"),
    [
        ("False", {2}, "Stops.on_step returned False at step 2"),
        ("on_step", {2}, "Stops.on_step raised StopTraining at step 2: the reward is good enough"),
        ("on_checkpoint", {3, 4}, "Stops.on_checkpoint raised StopTraining at step 2"),  # it was written beside step 3
    ],
)
def test_a_callback_ends_a_run_early_evaluated_and_saved(how: str, steps: set[int], told: str, tmp_path: Path):
    longer = SMALL | {"steps": 6, "checkpoint_every": 1}
    run = up.train("grpo", **longer, out=tmp_path / "run", callbacks=[Stops(how)])
    last = run.summary["steps"]
    assert last in steps
    assert run.summary["ended_early"] == told
    assert [record["step"] for record in run.evaluations] == [0, last]
    assert run.summary["score_after"] == run.evaluations[-1]["score"]
    assert run.folder.latest().name == f"step-{last:06d}"


def test_a_run_that_a_callback_ended_can_be_made_longer(tmp_path: Path):
    up.train("grpo", **SMALL, out=tmp_path / "run", callbacks=[Stops("False")])
    notes = Notes()
    run = up.resume(tmp_path / "run", steps=4, callbacks=[notes])
    assert [step for kind, step, _ in notes.told if kind == "step"] == [3, 4]
    assert "ended_early" not in run.summary


class Fails:
    """Fails in one of its methods, at a step."""

    def __init__(self, hook: str, step: int):
        self.hook, self.step = hook, step
        setattr(self, hook, self.fail)

    def fail(self, *told):
        if self.hook == "on_end" or told[0] == self.step:
            raise ValueError("the dashboard\nis gone")


@pytest.mark.parametrize(
    ("hook", "step", "saved"), [("on_step", 3, "step-000003"), ("on_evaluation", 0, "step-000000"), ("on_step", 4, "step-000004")]
)
def test_a_callback_that_fails_ends_the_run_with_a_checkpoint_that_it_goes_on_from(hook, step, saved, tmp_path: Path):
    whole = up.train("grpo", **SMALL, out=tmp_path / "whole")
    with pytest.raises(UserError, match=rf"the callback Fails.{hook} at step {step} failed \(ValueError: the dashboard is gone\)"):
        up.train("grpo", **SMALL, out=tmp_path / "run", callbacks=[Fails(hook, step)])
    assert up.load(tmp_path / "run").folder.latest().name == saved
    run = up.resume(tmp_path / "run")
    assert [record["entropy"] for record in run.metrics] == [record["entropy"] for record in whole.metrics]


def test_a_callback_that_fails_at_the_end_leaves_a_finished_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"Fails.on_end at step 4 failed .* The run has ended and is whole"):
        up.train("grpo", **SMALL, out=tmp_path / "run", callbacks=[Fails("on_end", 0)])
    assert up.load(tmp_path / "run").summary["steps"] == 4


def test_in_control_the_same_is_told(tmp_path: Path):
    notes, small = Notes(), dict(steps=2, envs=2, horizon=16, passes=1, eval_problems=2, checkpoint_every=1)
    up.train("ppo", "gym:CartPole-v1", **small, out=tmp_path / "run", callbacks=[notes])
    assert [step for kind, step, _ in notes.told if kind == "step"] == [1, 2]


@pytest.mark.filterwarnings("default")
def test_what_no_folder_holds_is_said_at_the_start_and_when_it_is_missing(tmp_path: Path):
    def remarks(action) -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            action()
        return [str(each.message) for each in said if each.category is Remark and "callbacks" in str(each.message)]

    (told,) = remarks(lambda: up.train("grpo", **SMALL | {"steps": 1, "warmup": 0}, out=tmp_path / "run", callbacks=[Notes()]))
    assert told == "callbacks are objects, which a run's folder cannot hold: give them to resume again (callbacks=[Notes])."
    found = remarks(lambda: up.resume(tmp_path / "run", steps=2))
    assert "the run had the callbacks Notes, which are not here: up.resume(RUN, callbacks=[...]) takes them." in found
    found = remarks(lambda: up.resume(tmp_path / "run", steps=3, callbacks=[Notes()]))
    assert not any("not here" in each for each in found)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("tensorboard", "callbacks is 'tensorboard' \\(str\\); it must be a list of objects with on_step"),
        (Notes(), r"it must be a list .* Give callbacks=\[Notes"),
        ([Notes], "Notes is a class, not an object of it"),
        ([print], "has none of the methods on_step"),
        ([None], "callbacks: None \\(NoneType\\) has none of the methods"),
        (7, "callbacks is 7 \\(int\\)"),
    ],
)
def test_what_is_no_callback_is_refused_before_the_run(given: object, told: str, tmp_path: Path):
    with pytest.raises(UserError, match=told):
        up.train("grpo", **SMALL, out=tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()
