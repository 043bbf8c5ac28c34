"""The same seed gives the same run, and a run that was stopped ends as one that was not: weights and log, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import upslope as up
from upslope.methods import catalogue
from upslope.testing.runs import Breaks, Crash, result
from upslope.testing.runs import assert_same_run as assert_same

TEXT = {
    "model": "tiny:layers=1,width=32", "steps": 4, "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2,
    "max_tokens": 4, "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2, "eval_every": 3,
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "steps": 4, "envs": 2, "horizon": 24, "passes": 2, "eval_problems": 2, "checkpoint_every": 2}
QUICK = ("grpo", "dhpo", "ppo", "bpo", "remix", "spo-single-stream", "t-ppo", "polychromic", "safe", "minirl-r2")
"""Methods with every kind of thing to carry over; `make test-fast` tries these."""
every_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in catalogue()]
)


@pytest.fixture
def arguments(tmp_path) -> Callable[[str], dict]:
    """Settings of a run of a second in which every group has a signal: an untrained model, paid for writing letters."""
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{i}+{i}=", "answer": str(2 * i)}) + "\n" for i in range(20))
    )
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
    )
    text = {**TEXT, "task": str(tmp_path / "data.jsonl"), "reward": f"{tmp_path / 'letters.py'}:score"}
    return lambda method: CONTROL if catalogue()[method].family == "control" else text


@every_method
def test_resuming_equals_never_stopping(method, arguments, tmp_path):
    settings = arguments(method)
    whole = up.train(method, **settings, out=tmp_path / "whole")
    assert any(record["grad_norm"] > 0 for record in whole.metrics)
    for stop in (1, 3) if method in ("dhpo", "ppo") else (3,):
        out = tmp_path / f"cut-{stop}"
        with pytest.raises(Crash):
            up.train(method, **settings, out=out, watcher=Breaks(stop))
        assert not (out / "summary.json").exists()
        up.resume(out)
        assert_same(whole.path, out)


@every_method
def test_the_same_seed_gives_the_same_curve_and_another_does_not(method, arguments, tmp_path):
    settings = {**arguments(method), "steps": 2, "eval_every": 0}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        up.train(method, **settings, seed=seed, out=tmp_path / name)
    assert_same(tmp_path / "one", tmp_path / "same")
    assert result(tmp_path / "one")[1] != result(tmp_path / "other")[1]


def start(out: Path, *, control: bool) -> subprocess.Popen:
    common = ["--out", str(out), "--checkpoint-every", "3", "--quiet"]
    text = ["dhpo", "--task", "reverse:length=2", "--model", "tiny:layers=1,width=32", "--steps", "30", "--warm-start", "0.02"]
    gym = ["ppo", "--task", "gym:CartPole-v1", "--steps", "12", "--envs", "2", "--horizon", "64"]
    sizes = ["--eval-problems", "5"] if control else ["--eval-problems", "20", "--tasks-per-step", "8", "--updates-per-step", "2"]
    return launch("train", *(gym if control else text), *sizes, *common)


def launch(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "upslope", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def wait_for_lines(out: Path, lines: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        log = out / "metrics.jsonl"
        if log.exists() and len(log.read_text().splitlines()) >= lines:
            return
        if process.poll() is not None:
            raise AssertionError(f"the run ended by itself:\n{process.stdout.read()}")
        time.sleep(0.005)
    raise AssertionError("the run never got there")


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
def test_kill_dash_nine_loses_nothing(control, tmp_path):
    whole = start(tmp_path / "whole", control=control)
    assert whole.wait(timeout=300) == 0, whole.stdout.read()
    out = tmp_path / "killed"
    for lines in (0, 5, 9):
        process = start(out, control=control) if lines == 0 else launch("resume", str(out), "--quiet")
        wait_for_lines(out, lines, process)
        if lines == 0:
            while not (out / "run.toml").exists():
                time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "summary.json").exists()
    up.resume(out)
    assert_same(tmp_path / "whole", out)


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
def test_control_c_stops_cleanly_and_goes_on(control, tmp_path):
    whole = start(tmp_path / "whole", control=control)
    assert whole.wait(timeout=300) == 0, whole.stdout.read()
    out = tmp_path / "stopped"
    process = start(out, control=control)
    wait_for_lines(out, 5, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert f"upslope resume {out}" in said
    up.resume(out)
    assert_same(tmp_path / "whole", out)


def test_a_finished_run_is_left_alone(arguments, tmp_path):
    run = up.train("grpo", **{**arguments("grpo"), "steps": 1}, out=tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")}
    assert up.resume(run.path).summary == run.summary
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")}
