"""``--checkpoint-every none``: nothing is written to go on from, and whoever asks is told why."""

from __future__ import annotations

import os
import signal

import pytest

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.run import Stopped

SMALL = {"task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 3, "tasks_per_step": 2, "samples_per_task": 2,
         "warm_start": 0.0, "eval_problems": 2, "threads": 1, "checkpoint_every": "none"}  # fmt: skip


def test_no_checkpoint_is_written_and_it_is_said_at_both_ends(tmp_path):
    with pytest.warns(Remark) as heard:
        run = up.train("grpo", **SMALL, out=tmp_path / "run")
    said = [str(each.message) for each in heard if "--checkpoint-every none" in str(each.message)]
    assert len(said) == 2 and "no checkpoint is written" in said[0] and "no checkpoint was written" in said[1]
    assert not list((tmp_path / "run").rglob("*.safetensors")), "the start neither"
    assert run.table["settings"]["checkpoint_every"] == "none" and len(run.metrics) == 3
    kept = up.train("grpo", **SMALL | {"checkpoint_every": 1}, out=tmp_path / "kept")
    assert [each["loss"] for each in run.metrics] == [each["loss"] for each in kept.metrics], "and nothing else is another"
    for ask in (lambda: up.resume(tmp_path / "run", steps=5), lambda: up.load(tmp_path / "run").policy):
        with pytest.raises(UserError, match=r"kept no checkpoint, as it was asked to \(--checkpoint-every none\)"):
            ask()
    assert main(["check", str(tmp_path / "run")]) == 0


def test_a_run_that_was_stopped_is_not_resumed(tmp_path):
    class Stop(up.Watcher):
        def stepped(self, step, metrics):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(Remark), pytest.raises(Stopped, match="stopped after step 1; it keeps no checkpoints"):
        up.train("grpo", **SMALL, out=tmp_path / "run", watcher=Stop())
    with pytest.raises(UserError, match="kept no checkpoint, as it was asked to"):
        up.resume(tmp_path / "run")


def test_the_best_weights_are_kept_where_they_were_asked_for(tmp_path):
    with pytest.warns(Remark, match="only the best evaluation's weights were kept"):
        up.train("grpo", **SMALL, keep="best:reward", eval_every=1, out=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["best"]
    assert up.load(tmp_path / "run", checkpoint="best").policy.parameter_count() > 0
