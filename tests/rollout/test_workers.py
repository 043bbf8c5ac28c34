"""Workers: wherever a plan is sampled its weights are the same, and a worker that is lost loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from small_runs import SMALL

import upslope as up
from upslope.errors import UserError
from upslope.rollout.workers import WorkerPlan, WorkerPool
from upslope.types import Assignment

MISBEHAVING = Path(__file__).parents[1] / "misbehaving_worker.py"


class ByHand(WorkerPlan):
    """Workers that misbehave where a file in their folder says so."""

    def command(self, channel: int) -> list[str]:
        return [sys.executable, str(MISBEHAVING), str(self.folder), str(channel)]


@pytest.fixture
def pool(tmp_path):
    made = []

    def start(count: int = 1, **changes) -> WorkerPool:
        made.append(WorkerPool(ByHand(tmp_path, count, **changes)))
        return made[-1]

    yield start
    for each in made:
        each.close()
        assert not [state.pid for state in each.states if alive(state.pid)], "a closed pool leaves no process behind"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def given(pool: WorkerPool, step: int, shares: int = 1, version: int = 1) -> list[Assignment]:
    pieces = Assignment(step, version=version, numbers=tuple(range(shares)), samples=(2,) * shares).cut(shares)
    pool.publish(version, lambda: {"w": torch.full((3,), float(version))})
    pool.give(pieces)
    return pieces


def taken(pool: WorkerPool, pieces: list[Assignment]) -> list[float]:
    return [float(pool.result(piece).rows.reward.mean()) for piece in pieces]


@pytest.mark.parametrize(("fault", "kind"), [("die", "worker_died"), ("cut", "worker_died"), ("hang", "worker_hung"),
                                             ("old-weights", "other_weights")])  # fmt: skip
def test_what_a_lost_worker_had_is_given_out_again(pool, tmp_path, fault, kind):
    made = pool()
    made.silent_seconds = 3.0
    assert taken(made, given(made, 1)) == [1.0]
    (tmp_path / f"do-{fault}").touch()
    pieces = given(made, 2, version=2)
    assert taken(made, pieces) == [2.0] and made.faults == {kind: 1}
    assert made.result(pieces[0]).version == 2


def test_every_share_is_done_once_where_nothing_goes_wrong(pool, tmp_path):
    made = pool(2)
    pieces = [piece for step in (1, 2, 3) for piece in given(made, step, shares=3, version=step)]
    assert taken(made, pieces) == [1.0] * 3 + [2.0] * 3 + [3.0] * 3
    assert len(list(tmp_path.glob("did-*"))) == 9 and not made.faults
    for piece in pieces:
        made.forget(piece)
    told = made.metrics()
    assert 0 <= told["worker_busy"] <= 1 and told["waited"] > 0


def test_at_a_free_pace_the_newest_weights_are_taken_and_at_an_exact_one_those_named(pool):
    for free in (False, True):
        made = pool(1, free=free)
        first = given(made, 1, version=1)
        taken(made, first)
        pieces = Assignment(2, version=1, numbers=(0,), samples=(1,)).cut(1)
        made.publish(2, lambda: {"w": torch.zeros(3)}) if free else None
        made.give(pieces)
        assert made.result(pieces[0]).version == (2 if free else 1)


def test_a_refusal_reaches_the_user_in_its_own_words(pool, tmp_path):
    made = pool()
    (tmp_path / "do-refuse").touch()
    with pytest.raises(UserError, match="this cannot be answered"):
        taken(made, given(made, 1))


def test_a_refusal_is_heard_of_a_worker_that_was_gone_before_it_was_told_anything(pool, tmp_path):
    (tmp_path / "refuse-at-once").touch()
    made = pool()
    while made.states[0].doing == "starting":
        time.sleep(0.01)
    made.workers[0].process.wait(60)
    with pytest.raises(UserError, match="this cannot be answered"):
        taken(made, given(made, 1))
    assert not made.faults


def test_workers_that_never_get_going_end_the_run_with_what_they_said(pool, tmp_path):
    (tmp_path / "never-ready").touch()
    made = pool()
    with pytest.raises(UserError, match=r"workers were lost one after another.*no such model.*logs"):
        taken(made, given(made, 1))


# -- whole runs ------------------------------------------------------------------------------------------------------------


def trained(out: Path, method: str = "grpo", **changes) -> up.Run:
    return up.train(method, **(SMALL | changes), out=out)


def weights(run: up.Run) -> dict[str, torch.Tensor]:
    return run.policy.weights()


def same(one: up.Run, other: up.Run) -> bool:
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


def test_a_plan_ends_in_the_same_weights_wherever_it_was_sampled(tmp_path):
    here = trained(tmp_path / "here", shares=2, reuse="off")
    there = trained(tmp_path / "there", shares=2, workers=2)
    assert same(here, there)
    rewards = [[step["reward"] for step in run.metrics] for run in (here, there)]
    assert rewards[0] == rewards[1] and any(rewards[0]), "the case must earn something to learn from"
    assert "faults" not in there.summary


class Kills:
    """Kills a worker of the run after some steps."""

    def __init__(self, folder: Path, at: tuple[int, ...], number: int = signal.SIGKILL):
        self.folder, self.at, self.number = folder, at, number
        self.killed: list[int] = []

    def on_step(self, step: int, metrics: dict) -> None:
        if step in self.at:
            pids = json.loads((self.folder / "process.json").read_text())["workers"]
            self.killed.append(pids[step % len(pids)])
            with suppress(ProcessLookupError):  # the one killed before, whose place is not taken yet
                os.kill(self.killed[-1], self.number)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asyncflow", "t-ppo+asyncflow"])
def test_sampling_ahead_ends_the_same_undisturbed_in_processes_and_with_workers_killed(tmp_path, method):
    ahead = {"max_staleness": 2, "steps": 6}
    here = trained(tmp_path / "here", method, **ahead)
    kills = Kills(tmp_path / "there", (2, 3, 5))
    there = trained(tmp_path / "there", method, **ahead, workers=1, callbacks=[kills])
    assert same(here, there) and len(kills.killed) == 3
    assert there.summary["faults"]["worker_died"] >= 1
    assert not [pid for pid in kills.killed if alive(pid)]


@pytest.mark.slow
def test_at_a_free_pace_no_row_is_too_old_and_none_comes_twice(tmp_path):
    run = trained(tmp_path / "run", "asyncflow", max_staleness=2, workers=1, pace="free", steps=8)
    assert len(run.metrics) == 8 and max(step["oldest"] for step in run.metrics) <= 2


def test_workers_and_objects_that_they_cannot_find_are_refused(tmp_path):
    with pytest.raises(UserError, match="no other process can find"):
        up.train("grpo", **SMALL, workers=1, reward=lambda prompts, responses, answers: [1.0] * len(prompts), out=tmp_path / "run")
    with pytest.raises(UserError, match="goes with text"):
        up.train("ppo", "gym:CartPole-v1", workers=1, out=tmp_path / "control")


def test_a_run_that_is_killed_takes_its_workers_with_it(tmp_path):
    out, words = (
        tmp_path / "run",
        "train asyncflow --task reverse:length=2 --model tiny:layers=1,width=16 --steps 10000 --warm-start 0",
    )
    sizes = "--tasks-per-step 4 --samples-per-task 4 --eval-problems 4 --workers 1 --max-staleness 1 --quiet --out"
    command = [sys.executable, "-m", "upslope", *words.split(), *sizes.split(), str(out)]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=said, stdout=said)
    until = time.monotonic() + 300
    while steps_of(out) < 2 and time.monotonic() < until:
        assert process.poll() is None, (tmp_path / "said.txt").read_text()
        time.sleep(0.2)
    pids = json.loads((out / "process.json").read_text())["workers"]
    assert pids and all(map(alive, pids))
    process.kill()
    process.wait()
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(map(alive, pids))


def steps_of(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return sum('"kind": "step"' in line for line in lines)
