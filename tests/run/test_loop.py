"""Runs that end early, go on for longer, keep their best, and take no more of the disk than they need."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import upslope as up
from upslope.errors import Remark, UserError
from upslope.run import Run, Watcher
from upslope.runtime import checkpoint_saver
from upslope.runtime.settings import Settings
from upslope.runtime.settings_remarks import remarks_on
from upslope.runtime.snapshots import Snapshot

SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "tasks_per_step": 2, "samples_per_task": 4, "warm_start": 0.0,
    "eval_problems": 8, "lr": 1e-3, "warmup": 0, "record": "none", "schedule": "constant",
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "envs": 2, "horizon": 16, "passes": 1, "eval_problems": 2, "checkpoint_every": 2}


class Scored(Watcher):
    """Gives a run the scores of a list, one for each evaluation."""

    def __init__(self, scores: list[float]):
        self.scores = list(scores)

    def began(self, run, components):
        def evaluate(progress=None):
            score = self.scores.pop(0)
            return {"score": score, "low": score, "high": score, "reward": -score}

        components.evaluate = evaluate


class Killed(Watcher):
    def __init__(self, step: int):
        self.step = step

    def stepped(self, step, metrics):
        if step == self.step:
            raise KeyboardInterrupt


def weights(run: Run, checkpoint: str = "") -> dict[str, torch.Tensor]:
    folder = run.path / "checkpoints" / checkpoint if checkpoint else run.folder.latest()
    return load_file(folder / ("model.safetensors" if (folder / "model.safetensors").exists() else "policy.safetensors"))


def same(one: Run, other: Run) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- longer --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SMALL, CONTROL], ids=["text", "control"])
def test_a_finished_run_goes_on_to_the_weights_of_a_longer_one(settings, tmp_path):
    method = "ppo" if settings is CONTROL else "grpo"
    even = settings | {"schedule": "constant"}
    long = up.train(method, **even, steps=6, out=tmp_path / "long")
    short = up.train(method, **even, steps=4, out=tmp_path / "short")
    with pytest.warns(Remark, match="a run of 6 steps, not of 4"):
        longer = up.resume(short.path, steps=6)
    assert same(long, longer) and longer.summary["steps"] == 6
    assert [record["step"] for record in longer.metrics] == [1, 2, 3, 4, 5, 6]
    # What it was worth at its first end stays in its history.
    assert [record["step"] for record in longer.evaluations] == [0, 4, 6]
    assert longer.evaluations[-1]["score"] == long.evaluations[-1]["score"]
    assert longer.folder.table()["lengthened"] == [{"at": 4, "from": 4, "to": 6}]


def test_a_stopped_run_may_get_another_end_and_a_kill_afterwards_loses_nothing(tmp_path):
    long = up.train("grpo", **SMALL, steps=8, out=tmp_path / "long")
    with pytest.raises(KeyboardInterrupt):
        up.train("grpo", **SMALL, steps=4, checkpoint_every=2, watcher=Killed(3), out=tmp_path / "run")
    with pytest.warns(Remark), pytest.raises(KeyboardInterrupt):
        up.resume(tmp_path / "run", Killed(5), steps=8)
    assert same(up.resume(tmp_path / "run"), long)


def test_the_learning_rate_before_and_after_is_said(tmp_path):
    run = up.train("grpo", **SMALL | {"schedule": "linear", "lr_floor": 0.0}, steps=4, out=tmp_path / "run")
    with pytest.warns(Remark, match=r"learning rate of the next step 0\.00025 -> 0\.0005"):
        up.resume(run.path, steps=8)


def test_no_steps_left_is_refused_and_the_run_stays_finished(tmp_path):
    run = up.train("grpo", **SMALL, steps=2, out=tmp_path / "run")
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != "process.json"}
    with pytest.raises(UserError, match=r"has made 2 steps already; --steps 2 is how many"):
        up.resume(run.path, steps=2)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != "process.json"} == before
    assert up.resume(run.path).summary["steps"] == 2


def test_a_refused_lengthening_changes_nothing(tmp_path):
    run = up.train("grpo", [{"prompt": f"{n}", "answer": "1"} for n in range(12)], reward=lambda prompts, responses, answers: [
        float(len(response)) for response in responses
    ], **{key: value for key, value in SMALL.items() if key != "task"}, steps=2, out=tmp_path / "run")  # fmt: skip
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != "process.json"}
    with pytest.raises(UserError, match="was given its reward as a Python object"):
        up.resume(run.path, steps=4)
    after = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != "process.json"}
    assert after == before and up.load(run.path).summary["steps"] == 2


# -- shorter -------------------------------------------------------------------------------------------------------------


def test_a_score_that_is_reached_ends_the_run(tmp_path):
    scores = [0.1, 0.3, 0.96, 0.2, 0.2]
    run = up.train("grpo", **SMALL, steps=8, eval_every=2, stop_at="score=0.95", watcher=Scored(scores), out=tmp_path / "run")
    assert run.summary["steps"] == 4 and run.summary["score_after"] == 0.96
    assert run.summary["ended_early"] == "score 0.96 at step 4 reached --stop-at score=0.95"
    assert [record["step"] for record in run.evaluations] == [0, 2, 4] and run.folder.latest().name == "step-000004"
    again = up.train("grpo", **SMALL, steps=4, out=tmp_path / "again")
    assert same(run, again)


def test_a_score_that_is_there_at_the_start_leaves_nothing_to_do(tmp_path):
    run = up.train("grpo", **SMALL, steps=8, stop_at="score=0.5", watcher=Scored([0.5]), out=tmp_path / "run")
    assert run.summary["steps"] == 0 and not run.metrics


def test_patience_counts_evaluations_without_a_better_one(tmp_path):
    scores = [0.1, 0.3, 0.2, 0.3, 0.9, 0.9, 0.9]
    run = up.train("grpo", **SMALL, steps=9, eval_every=1, patience=2, watcher=Scored(scores), out=tmp_path / "run")
    assert (
        run.summary["steps"] == 3
        and "2 evaluations up to step 3 did not exceed the score 0.3 of step 1" in run.summary["ended_early"]
    )
    with pytest.warns(Remark, match="no longer apply"):  # asked to go on, it does
        longer = up.resume(run.path, Scored([0.1] * 9), steps=10)
    assert longer.summary["steps"] == 10 and "ended_early" not in longer.summary


def test_a_kill_behind_an_early_end_changes_nothing(tmp_path, monkeypatch):
    scores = [0.1, 0.96]
    asked = {**SMALL, "steps": 8, "eval_every": 2, "stop_at": "score=0.95"}
    whole = up.train("grpo", **asked, watcher=Scored(scores), out=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("upslope.run.loop.TrainingLoop.finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        up.train("grpo", **asked, watcher=Scored(scores), out=tmp_path / "killed")
    resumed = up.resume(tmp_path / "killed", Scored([]))
    assert same(whole, resumed) and resumed.summary["ended_early"] == whole.summary["ended_early"]
    assert [record["step"] for record in resumed.evaluations] == [0, 2]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"keep": "best"}, "--keep is 'best'; it must be best:score or best:reward"),
        ({"keep": "best:accuracy"}, "best:score or best:reward"),
        ({"stop_at": "0.95"}, "--stop-at is '0.95'; it must be a name and a number"),
        ({"stop_at": "score=high"}, "score=high"),
        ({"patience": -1}, "--patience is -1"),
        ({"checkpoint_every": "often"}, "--checkpoint-every is 'often'"),
        ({"checkpoint_every": 0}, "--checkpoint-every is 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(setting, said):
    with pytest.raises(UserError, match=said):
        Settings(**setting)


def test_numbers_that_evaluations_do_not_have_are_refused_before_the_first_step(tmp_path):
    with pytest.raises(UserError, match=r"--stop-at: evaluations of this task have no 'acuracy'"):
        up.train("grpo", **SMALL, steps=2, stop_at="acuracy=1", out=tmp_path / "run")
    with pytest.raises(UserError, match="--checkpoint-every auto goes with text"):
        up.train("ppo", **CONTROL | {"checkpoint_every": "auto"}, steps=2, out=tmp_path / "control")


# -- the best ------------------------------------------------------------------------------------------------------------


def test_the_best_evaluation_keeps_its_weights(tmp_path):
    asked = {**SMALL, "steps": 4, "eval_every": 1, "checkpoint_every": 1, "keep_checkpoints": 9}
    run = up.train("grpo", **asked, keep="best:score", watcher=Scored([0.1, 0.2, 0.9, 0.9, 0.3]), out=tmp_path / "run")
    best, second = weights(run, "best"), weights(run, "step-000002")
    assert all(torch.equal(best[name], second[name]) for name in best)
    assert json.loads((run.folder.best / "best.json").read_text())["step"] == 2
    by_reward = up.train("grpo", **asked, keep="best:reward", watcher=Scored([0.1, 0.2, 0.9, 0.9, 0.3]), out=tmp_path / "two")
    assert json.loads((by_reward.folder.best / "best.json").read_text())["step"] == 0
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(run.folder.best, local_files_only=True)


def test_a_controller_is_used_at_its_best_where_that_is_asked(tmp_path):
    pytest.importorskip("onnx", reason="ONNX needs the extra upslope[export]")
    asked = {**CONTROL, "checkpoint_every": 9, "eval_every": 1, "keep": "best:score", "lr": 0.1}
    run = up.train("ppo", **asked, steps=2, watcher=Scored([0.1, 0.9, 0.3]), out=tmp_path / "run")
    best, last = up.load(run.path, checkpoint="best"), up.load(run.path)
    state = [0.1, -0.2, 0.05, 0.3]
    assert best.policy.weights()["actor.0.weight"].ne(last.policy.weights()["actor.0.weight"]).any()
    assert best.predict(state)[1] is None and best.checkpoint == run.folder.best
    for checkpoint, of in (("", best), ("last", last)):
        run.export(tmp_path / f"{checkpoint or 'best'}.pt", checkpoint=checkpoint)
        exported = torch.jit.load(tmp_path / f"{checkpoint or 'best'}.pt")
        logits = exported(torch.tensor([state]))[1]
        shown = of.policy.actor.forward(torch.tensor([state]).numpy())[0]
        assert torch.allclose(logits, torch.from_numpy(shown), atol=1e-5)
    plain = up.train("ppo", **CONTROL, steps=1, out=tmp_path / "plain")
    with pytest.raises(UserError, match="kept no best checkpoint"):
        up.load(plain.path, checkpoint="best")
    with pytest.raises(UserError, match="it must be 'best' or 'last'"):
        up.load(plain.path, checkpoint="beste")


# -- the disk ------------------------------------------------------------------------------------------------------------


def inode(path: Path) -> int:
    return os.stat(path / "model.safetensors").st_ino


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_start_takes_no_room_of_its_own(dtype, tmp_path):
    from upslope.policies.tiny import tiny_from_spec

    made, model = tiny_from_spec("layers=1,width=16", 1), tmp_path / "model"
    made.to(dtype=dtype).save(model)
    linked = inode(model)
    settings = SMALL | {"model": str(model), "watch_kl": True, "keep_checkpoints": 9}
    run = up.train("grpo", **settings, steps=2, out=tmp_path / "run")
    start, first, last = (run.path / "checkpoints" / name for name in ("start", "step-000000", "step-000002"))
    assert inode(start) == inode(first) == linked and inode(last) != linked
    # Whoever goes on from there goes on with the very weights.
    shutil.rmtree(last)
    (run.path / "summary.json").unlink()
    copy = up.train("grpo", **settings, steps=2, out=tmp_path / "copy")
    assert same(up.resume(run.path), copy)


def test_a_finished_run_leaves_one_checkpoint(tmp_path):
    seen = []

    class Counts(Watcher):
        def stepped(self, step, metrics):
            seen.append(len(list((tmp_path / "run" / "checkpoints").glob("step-*"))))

    run = up.train("grpo", **SMALL, steps=5, checkpoint_every=1, watcher=Counts(), out=tmp_path / "run")
    assert max(seen) <= 2 and [path.name for path in run.folder.checkpoints()] == ["step-000005"]


def test_what_a_kill_left_of_a_checkpoint_is_cleared_away(tmp_path):
    run = up.train("grpo", **SMALL, steps=2, checkpoint_every=1, keep_checkpoints=9, out=tmp_path / "run")
    (run.path / "summary.json").unlink()
    draft = run.path / "checkpoints" / ".step-000001.tmp"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"half of")
    up.resume(run.path)
    assert not draft.exists()


@pytest.mark.parametrize("asked", [{}, {"lora": 2, "adam_states": "bfloat16"}], ids=["weights", "adapters"])
def test_checkpoints_copied_while_the_next_step_is_sampled_are_those_copied_at_once(asked, tmp_path, monkeypatch):
    settings, copy_still = SMALL | asked | {"steps": 3, "checkpoint_every": 1, "keep_checkpoints": 9}, Snapshot.copy_still
    plain = up.train("grpo", **settings, out=tmp_path / "plain")
    monkeypatch.setattr(checkpoint_saver, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(Snapshot, "copy_still", lambda *args: (time.sleep(0.3), copy_still(*args))[1])  # longer than the step
    beside = up.train("grpo", **settings, out=tmp_path / "beside")
    for step in range(4):
        one, other = (json.loads((run.folder.checkpoint(step) / "digests.json").read_text()) for run in (plain, beside))
        tensors = [name for name in one if name.endswith(".safetensors")]
        assert len(tensors) >= (2 if step else 1) and [one[name] for name in tensors] == [other[name] for name in tensors]
    curves = [[(each["reward"], each["grad_norm"]) for each in run.metrics] for run in (plain, beside)]
    assert curves[0] == curves[1] and len(curves[0]) == 3


# -- what is probably not meant ----------------------------------------------------------------------------------------------


def test_a_warm_up_as_long_as_the_run_is_said_with_its_cure():
    found = remarks_on(Settings(steps=50, warmup=60, lr=1e-4).resolved("text", "tiny"))
    assert found == [
        "the warm-up of 60 steps is as long as the run of 50: the learning rate never reaches its 0.0001. Give --warmup 5."
    ]
    assert not remarks_on(Settings(steps=50).resolved("text", "tiny")) and not remarks_on(
        Settings(steps=5).resolved("text", "tiny")
    )
    assert "no evaluation falls within" in remarks_on(Settings(steps=5, eval_every=9, patience=1).resolved("text", "tiny"))[0]
    assert Settings(steps=50, patience=2).resolved("text", "tiny").eval_every == 5
