"""Several learners: a run with two ends as one with a single one does, and where one of them is lost nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from two_learners import ByCase

import upslope as up
from upslope.errors import UserError
from upslope.learners.nonfinite import NonFinite
from upslope.runtime.settings import Settings
from upslope.runtime.team_lead import LeadingTeam, LearnerLost
from upslope.setting_up.where import check_learners
from upslope.testing.runs import Breaks, Crash, assert_same_run

SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 4, "tasks_per_step": 8, "samples_per_task": 4,
    "warm_start": 0.0, "eval_problems": 8, "lr": 1e-3, "warmup": 0, "threads": 1, "record": "none", "checkpoint_every": 2,
    "audit": "off",
}  # fmt: skip
LETTERS = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
"""Pays for letters, of which an untrained model writes some."""


def trained(out: Path, method: str = "grpo", **changes) -> up.Run:
    file = out.parent / "letters.py"
    file.write_text(LETTERS)
    return up.train(method, **({"reward": f"{file}:score"} | SMALL | changes), out=out)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Looks:
    """Notes the learners of a run, and sends one of them a signal after a step."""

    def __init__(self, folder: Path, at: int = 0, number: int = signal.SIGKILL):
        self.folder, self.at, self.number = folder, at, number
        self.pids: list[int] = []

    def on_step(self, step: int, metrics: dict) -> None:
        self.pids = json.loads((self.folder / "process.json").read_text())["learners"]
        if step == self.at:
            os.kill(self.pids[1], self.number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> up.Run:
    """A run with two learners that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    looks = Looks(out)
    run = trained(out, learners=2, callbacks=[looks])
    assert looks.pids[0] == os.getpid() and len(looks.pids) == 2 and not alive(looks.pids[1])
    return run


def test_two_learners_end_where_one_ends_to_rounding(whole, tmp_path):
    alone = trained(tmp_path / "alone", reuse="off")
    for name, tensor in alone.policy.weights().items():
        torch.testing.assert_close(whole.policy.weights()[name], tensor, rtol=1e-4, atol=1e-6)
    assert any(step["reward"] for step in alone.metrics), "the case must earn something to learn from"
    for one, other in zip(alone.metrics, whole.metrics, strict=True):
        assert one.keys() == other.keys()
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_where_one_learner_is_killed_all_end_and_resuming_ends_the_same(whole, tmp_path):
    out = tmp_path / "run"
    looks = Looks(out, at=3)
    with pytest.raises(LearnerLost, match=r"learner 1 was killed \(SIGKILL\).*upslope resume"):
        trained(out, learners=2, callbacks=[looks])
    assert looks.pids and not alive(looks.pids[1]) and not (out / "summary.json").exists()
    up.resume(out)
    assert_same_run(whole.path, out)


@pytest.mark.slow
def test_who_samples_makes_no_difference(whole, tmp_path):
    there = trained(tmp_path / "there", learners=2, workers=1)
    weights = there.policy.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in whole.policy.weights().items())


@pytest.mark.slow
@pytest.mark.parametrize("method", [*(pytest.param(name, marks=pytest.mark.torture) for name in ("seppo", "tp-llama")), "dpo"])
def test_resuming_equals_never_stopping(tmp_path, method):
    more = {"learners": 2, "watch_kl": True}
    undisturbed = trained(tmp_path / "whole", method, **more)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", method, **more, watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(undisturbed.path, tmp_path / "cut")


POISON = '''
from dataclasses import dataclass
import upslope as up
from upslope.objective.base import Regularizer

@dataclass(frozen=True)
class Poison(Regularizer):
    """NaN in the last problem's rows, in the second of ten steps and from the fourth on."""

    def __call__(self, batch):
        loss = batch.current.logp * 0.0
        if 0.1 <= batch.progress < 0.2 or batch.progress >= 0.3:
            loss[batch.group == 7] = float("nan") * batch.current.logp[batch.group == 7]
        return loss

method = up.method("grpo").derive(name="poisoned", regularize=Poison(), on=())
'''


def test_a_nan_of_one_learner_is_what_it_is_alone(tmp_path):
    (tmp_path / "poisoned.py").write_text(POISON)
    said = []
    for learners in (1, 2):
        out = tmp_path / f"with-{learners}"
        with pytest.raises(NonFinite) as told:
            trained(out, str(tmp_path / "poisoned.py"), steps=10, learners=learners, reuse="off")
        said.append(str(told.value).replace(str(out), "RUN"))
        skipped = [record["skipped_updates"] for record in up.load(out).metrics]
        assert skipped == [0, 1, 0, 1, 1, 1, 1] and not torch.tensor(skipped).isnan().any()
        assert sorted(file.name for file in (out / "nonfinite").iterdir()) == [
            "step-000002.safetensors", "step-000004.safetensors", "step-000008.safetensors",
        ]  # fmt: skip
    assert said[0] == said[1] and "5 updates in a row" in said[0]


@pytest.mark.slow
def test_a_run_that_is_killed_takes_its_learners_with_it(tmp_path):
    out, words = tmp_path / "run", "train grpo --task reverse:length=2 --model tiny:layers=1,width=16 --steps 100000 --warm-start 0"
    sizes = "--tasks-per-step 4 --samples-per-task 4 --eval-problems 4 --learners 2 --quiet --out"
    command = [sys.executable, "-m", "upslope", *words.split(), *sizes.split(), str(out)]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=said, stdout=said)
    until = time.monotonic() + 300
    while '"kind": "step"' not in (out / "metrics.jsonl").read_text() if (out / "metrics.jsonl").exists() else True:
        assert process.poll() is None and time.monotonic() < until, (tmp_path / "said.txt").read_text()
        time.sleep(0.2)
    pids = json.loads((out / "process.json").read_text())["learners"]
    assert pids[0] == process.pid and all(map(alive, pids))
    process.kill()
    process.wait()
    while alive(pids[1]) and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(pids[1])


def test_a_learner_that_hangs_is_lost(tmp_path):
    class Impatient(LeadingTeam):
        silent_seconds = 5.0

    team = Impatient(ByCase(tmp_path, size=2))
    try:
        team.meet()
        os.kill(team.others[0].process.pid, signal.SIGSTOP)
        with pytest.raises(LearnerLost, match="said nothing for 5 s"):
            team.sum(torch.ones(1))
    finally:
        team.close()
    assert not alive(team.others[0].process.pid)


def test_what_one_learner_refuses_reaches_the_user_in_its_own_words(tmp_path):
    team = LeadingTeam(ByCase(tmp_path, size=2))
    try:
        team.meet()
        team.tell("begin", lambda: {"method": "no-such-method", "settings": {}})
        with pytest.raises(UserError, match="no-such-method"):
            team.sum(torch.ones(1))
    finally:
        team.close()


def test_a_learner_that_never_gets_going_ends_the_run_with_where_it_said_why(tmp_path):
    class Wrong(ByCase):
        def command(self, rank: int, channel: int) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('no such model')"]

    team = LeadingTeam(Wrong(tmp_path, size=2))
    try:
        with pytest.raises(LearnerLost, match=r"ended with code 1.*logs"):
            team.meet()
    finally:
        team.close()
    assert "no such model" in (tmp_path / "logs" / "learner-1.txt").read_text()


def test_what_cannot_be_learned_by_several_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no other process can find"):
        trained(tmp_path / "run", learners=2, reward=lambda prompts, responses, answers: [1.0] * len(prompts))
    with pytest.raises(UserError, match="--learners 2 goes with text"):
        up.train("ppo", "gym:CartPole-v1", learners=2, out=tmp_path / "control")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"--learners 2, and there is 1 GPU.*--device cpu"):
        check_learners(Settings(learners=2, device="cuda"))
    check_learners(Settings(learners=1, device="cuda"))
    check_learners(Settings(learners=2, device="cpu"))
