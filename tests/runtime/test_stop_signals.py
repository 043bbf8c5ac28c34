"""A run that a scheduler or a user stops: it finishes its step, keeps a checkpoint and says how to go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import upslope as up
from upslope.run import Watcher
from upslope.runtime.run_folder import RunFolder

QUICK = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 6, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2,
}  # fmt: skip
FLAGS = [
    "--task", "reverse:length=2", "--model", "tiny:layers=1,width=16", "--tasks-per-step", "2", "--samples-per-task", "2",
    "--warm-start", "0", "--eval-problems", "4",
]  # fmt: skip


def launched(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "upslope", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        log = run / "metrics.jsonl"
        if log.exists() and f'"step": {step},' in log.read_text():
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_a_scheduler_that_stops_a_run_gets_a_checkpoint_of_its_last_step(tmp_path):
    words = ["train", "grpo", *FLAGS, "--checkpoint-every", "1000000", "--steps", "1000000"]
    process = launched([*words, "--out", str(tmp_path / "run")])
    wait_for_step(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    last = RunFolder(tmp_path / "run").latest()
    assert process.returncode == 130 and f"goes on from {last.name}" in said
    steps = [record["step"] for record in up.load(tmp_path / "run").metrics]
    assert int(last.name[5:]) == steps[-1] >= 3
    assert "ended" in json.loads((tmp_path / "run" / "process.json").read_text())


@pytest.mark.slow
def test_control_says_what_is_made_again_after_a_stop(tmp_path):
    words = ["train", "ppo", "--task", "gym:CartPole-v1", "--envs", "1", "--horizon", "8", "--eval-problems", "1"]
    process = launched([*words, "--steps", "1000000", "--checkpoint-every", "1000000", "--out", str(tmp_path / "run")])
    wait_for_step(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "goes on from step-000000" in said and "made again" in said


def test_the_second_signal_ends_at_once(tmp_path):
    class Signals(Watcher):
        def stepped(self, step, metrics):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the second was not heeded")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        up.train("grpo", **QUICK, out=tmp_path / "run", watcher=Signals())
    assert signal.getsignal(signal.SIGTERM) == before
