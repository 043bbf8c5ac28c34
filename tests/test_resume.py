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
from upslope.run import Run
from upslope.run import start as start_run
from upslope.runtime.files import load_state
from upslope.testing.runs import LETTERS, VARIED, Breaks, Crash, Ground, needs_variants, result, sums
from upslope.testing.runs import assert_same_run as assert_same

TEXT = {
    "model": "tiny:layers=1,width=32", "steps": 4, "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2,
    "max_tokens": 4, "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2, "eval_every": 3,
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "steps": 4, "envs": 2, "horizon": 24, "passes": 2, "eval_problems": 2, "checkpoint_every": 2}
QUICK = ("grpo", "dhpo", "ppo", "bpo", "remix", "spo-single-stream", "t-ppo", "polychromic", "safe", "minirl-r2", "dqn", "sac",
         "td3-bc")  # fmt: skip
"""Methods with every kind of thing to carry over; `make test-fast` tries these."""
NAMES = [name for name, method in catalogue().items() if method.learner != "measure"]
every_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)


@pytest.fixture
def train(tmp_path) -> Callable[..., Run]:
    """A run of a second: an untrained model, paid for writing letters, a controller, or small networks with stored experience."""
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sums()))
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    reward = [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
        "    return {'reward': reward, 'seconds': [1.0 + len(r) % 3 for r in responses]}  # a clock would tell others each time\n"
    )
    text = {**TEXT, "task": str(tmp_path / "data.jsonl"), "reward": f"{tmp_path / 'letters.py'}:score"}

    def run(name: str, out: Path, watcher: up.Watcher | None = None, **settings: object) -> Run:
        method = catalogue()[name]
        if method.learner == "actor-critic":
            return start_run(Ground().plan(method, tmp_path, **settings), out=out, watcher=watcher)
        if needs_variants(method):
            settings = {"task": VARIED, **settings}
        return up.train(name, **{**(CONTROL if method.family == "control" else text), **settings}, out=out, watcher=watcher)

    return run


@every_method
def test_resuming_equals_never_stopping(method, train, tmp_path):
    whole = train(method, tmp_path / "whole")
    assert any(record.get("grad_norm", 0) > 0 or record["updates"] > 0 for record in whole.metrics)
    for stop in (1, 3) if method in ("dhpo", "ppo", "sac") else (3,):
        out = tmp_path / f"cut-{stop}"
        with pytest.raises(Crash):
            train(method, out, Breaks(stop))
        assert not (out / "summary.json").exists()
        up.resume(out)
        assert_same(whole.path, out)


@every_method
def test_the_same_seed_gives_the_same_curve_and_another_does_not(method, train, tmp_path):
    steps = 1 + max(1, len(catalogue()[method].stages))
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(method, tmp_path / name, steps=steps, eval_every=0, seed=seed)
    assert_same(tmp_path / "one", tmp_path / "same")
    assert result(tmp_path / "one")[1] != result(tmp_path / "other")[1]


COMMANDS = {
    "text": [*("dhpo", "--task", "reverse:length=2", "--model", "tiny:layers=1,width=32", "--steps", "30", "--warm-start", "0.02"),
             *("--eval-problems", "20", "--tasks-per-step", "8", "--updates-per-step", "2")],
    "control": ["ppo", "--task", "gym:CartPole-v1", "--steps", "12", "--envs", "2", "--horizon", "64", "--eval-problems", "5"],
    "stored": [*("sac", "--task", "gym:Pendulum-v1", "--steps", "12", "--envs", "2", "--horizon", "64", "--eval-problems", "2"),
               *("--updates-per-step", "32", "--minibatch", "32", "--set", "policy.hidden=16,16"),
               *("--set", "models.q.network.hidden=16,16")],
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", COMMANDS)


def start(out: Path, kind: str) -> subprocess.Popen:
    return launch("train", *COMMANDS[kind], "--out", str(out), "--checkpoint-every", "3", "--quiet")


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
@each_kind
def test_kill_dash_nine_loses_nothing(kind, tmp_path):
    whole = start(tmp_path / "whole", kind)
    assert whole.wait(timeout=300) == 0, whole.stdout.read()
    out = tmp_path / "killed"
    for lines in (0, 5, 9):
        process = start(out, kind) if lines == 0 else launch("resume", str(out), "--quiet")
        wait_for_lines(out, lines, process)
        if lines == 0:
            while not (out / "run.toml").exists():
                time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "summary.json").exists()
    up.resume(out)
    assert_same(tmp_path / "whole", out)


STATES = {
    "ghpo+mopps": ("memory.posterior", "guided_groups", {"data.success": 0.5}),
    "evol-rl+sec": ("memory.category", "reward_verdict", {"reward.1.embedding": "characters"}),
    "eva": ("memory.pool", "made", {}),
}
"""Methods that remember the problems they chose, helped with or made: the state, a metric of the rest, and knobs."""
each_state = pytest.mark.parametrize("method", STATES)
KILLED_IN_STEP_3 = """
import json, os, signal, sys
import transformers.models.llama.modeling_llama, upslope.methods, upslope.run, upslope.setting_up.text
import upslope as up

class Kills(up.Watcher):
    def stepped(self, step, metrics):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

for given in json.loads(sys.argv[1]):
    child = os.fork()  # what is imported is imported once: that takes most of the time
    if not child:
        up.train(**given, watcher=Kills())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, given
"""


def remembering(method: str, folder: Path, **settings: object) -> dict[str, object]:
    """What `up.train` is given for a run with such a state."""
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sums()))
    (folder / "letters.py").write_text(LETTERS)
    task = VARIED if method == "eva" else str(folder / "data.jsonl")
    given = {"method": method, "task": task, "reward": f"{folder / 'letters.py'}:score", "knobs": STATES[method][2]}
    return {**TEXT, "steps": 5, **given, **settings}


def remembered(run: Run, part: str) -> dict[str, object]:
    """The state of a part at a run's end, as plain data."""
    state = load_state(run.folder.reader(run.folder.latest()), "learner")["parts"][part]
    return {name: column if isinstance(column, list) else column.tolist() for name, column in state.items()}


@pytest.mark.slow
def test_kill_dash_nine_loses_nothing_of_what_is_remembered_of_problems(tmp_path):
    given = {method: remembering(method, tmp_path) for method in STATES}
    killed = [{**each, "out": str(tmp_path / f"{method}-killed")} for method, each in given.items()]
    subprocess.run([sys.executable, "-c", KILLED_IN_STEP_3, json.dumps(killed)], check=True)
    for method, (part, metric, _) in STATES.items():
        whole, out = up.train(**given[method], out=tmp_path / method), tmp_path / f"{method}-killed"
        assert remembered(whole, part)["task"]
        assert any(record.get(metric, 0) > 0 for record in whole.metrics)
        assert not (out / "summary.json").exists()
        assert remembered(up.resume(out), part) == remembered(whole, part)
        assert len(whole.folder.read("problems.jsonl")) == 5
        assert (out / "problems.jsonl").read_bytes() == (whole.path / "problems.jsonl").read_bytes()
        assert_same(whole.path, out)


@each_state
def test_a_recording_changes_nothing_of_what_is_remembered_of_problems(method, tmp_path):
    runs = [up.train(**remembering(method, tmp_path, record=record), out=tmp_path / record) for record in ("none", "all")]
    assert [any((run.path / "rollouts").glob("*")) for run in runs] == [False, True]
    assert remembered(runs[0], STATES[method][0]) == remembered(runs[1], STATES[method][0])
    assert_same(runs[0].path, runs[1].path)


@pytest.mark.slow
@each_kind
def test_control_c_stops_cleanly_and_goes_on(kind, tmp_path):
    whole = start(tmp_path / "whole", kind)
    assert whole.wait(timeout=300) == 0, whole.stdout.read()
    out = tmp_path / "stopped"
    process = start(out, kind)
    wait_for_lines(out, 5, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert f"upslope resume {out}" in said
    up.resume(out)
    assert_same(tmp_path / "whole", out)


def test_a_finished_run_is_left_alone(train, tmp_path):
    run = train("grpo", tmp_path / "run", steps=1)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")}
    assert up.resume(run.path).summary == run.summary
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "checkpoints").rglob("*")}
