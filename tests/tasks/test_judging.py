"""``--test-task``: a policy learns in one environment and is judged in another with the same spaces."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gymnasium
import pytest

import upslope as up
from upslope.board.app import Board
from upslope.cli import looking
from upslope.cli.parsers import parsers
from upslope.errors import TaskError, UserError
from upslope.report.checkup import EvaluationRequest, episode, evaluate, evaluation_text
from upslope.rollout.environments import evaluate_control
from upslope.rollout.evaluation import EVALUATION_SEED
from upslope.runtime import trust
from upslope.tasks import load_task
from upslope.tasks.judging import load_test_task

SMALL = dict(steps=1, envs=2, horizon=8, passes=1, eval_problems=3, threads=1)
HEAVY = "gym:Pendulum-v1:params.gravity=15"
FILE = """
import gymnasium

def calm():
    return gymnasium.make("Pendulum-v1", g=10.0)

def strong():
    return gymnasium.make("Pendulum-v1", g=15.0)
"""


def returns(run, task: str) -> list[float]:
    policy, state = run.policy, run.components.rollout.state()
    return evaluate_control(load_task(task), policy, state, episodes=3, seed=EVALUATION_SEED)


def test_it_is_where_a_run_is_evaluated_and_its_episode_recorded(tmp_path: Path):
    run = up.train("ppo", HEAVY, test_task="gym:Pendulum-v1", **SMALL, out=tmp_path / "run")
    there, here = returns(run, "gym:Pendulum-v1"), returns(run, HEAVY)
    assert there != here
    assert run.evaluations[-1]["score"] == pytest.approx(sum(there) / 3)
    assert run.table["settings"]["test_task"] == "gym:Pendulum-v1" and run.table["task"] == HEAVY
    record = json.loads(sorted((run.path / "episodes").glob("*.json"))[-1].read_text())
    env, total = gymnasium.make("Pendulum-v1"), 0.0
    env.reset(seed=record["seed"])
    for action in record["actions"]:
        total += float(env.step([min(max(action[0], -2.0), 2.0)])[1])
    assert record["return"] == pytest.approx(total, rel=1e-5)


def test_eval_try_and_the_board_go_there_too(tmp_path: Path):
    run = up.train("ppo", HEAVY, test_task="gym:Pendulum-v1", **SMALL, out=tmp_path / "runs" / "other")
    plain = up.train("ppo", HEAVY, **SMALL, out=tmp_path / "runs" / "same")
    found, usual = (evaluate(up.load(each.path), EvaluationRequest()) for each in (run, plain))
    assert found["test_task"] == "gym:Pendulum-v1" and "test_task" not in usual
    assert found["mean return"]["score"] != usual["mean return"]["score"], "the weights are the same, the environments are not"
    assert "judged in gym:Pendulum-v1" in evaluation_text(found) and "judged" not in evaluation_text(usual)
    assert episode(up.load(run.path)) != episode(up.load(plain.path))
    board = Board(tmp_path / "runs")
    assert board.judged_in("other") == "gym:Pendulum-v1" and board.judged_in("same") == HEAVY


def test_training_itself_is_not_changed_by_it(tmp_path: Path):
    kept = {}
    for name in ("", "gym:Pendulum-v1:params.mass=2"):
        run = up.train("ppo", "gym:Pendulum-v1", test_task=name, **SMALL, out=tmp_path / f"run{len(kept)}")
        kept[name] = [value.tolist() for value in run.policy.state_dict().values()]
    first, second = kept.values()
    assert first == second


def test_a_run_goes_on_with_it(tmp_path: Path):
    run = up.train("ppo", "gym:Pendulum-v1", test_task=HEAVY, **SMALL, out=tmp_path / "run")
    longer = up.resume(run.path, steps=2)
    assert longer.plan.settings.test_task == HEAVY
    assert longer.evaluations[-1]["score"] == pytest.approx(sum(returns(longer, HEAVY)) / 3)


def test_one_of_the_users_own_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = tmp_path / "mine"
    here.mkdir()
    (here / "my_poles.py").write_text(FILE)
    monkeypatch.chdir(here)
    run = up.train("ppo", "my_poles.py:calm", test_task="my_poles.py:strong", **SMALL, out=tmp_path / "run")
    (here / "my_poles.py").write_text("raise SystemExit('this is not the code of the run')")
    monkeypatch.chdir("/")
    again = up.load(run.path)
    assert again.policy is not None and again.components.test_task.make_one().unwrapped.g == 15.0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(trust.Untrusted, match=r"my_poles\.py"):
        up.load(run.path).plan  # noqa: B018


def test_code_that_only_the_test_task_names_asks_for_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_poles.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    run = up.train("ppo", "gym:Pendulum-v1", test_task="my_poles.py:strong", **SMALL, out=tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(trust.Untrusted, match=r"my_poles\.py"):
        up.load(run.path).plan  # noqa: B018
    text = (run.path / "run.toml").read_text()
    named = next(line for line in text.splitlines() if line.startswith("test_task"))
    (run.path / "run.toml").write_text(text.replace(named, 'test_task = "gym:some.module:Thing-v0"'))
    with pytest.raises(trust.Untrusted, match=r"some\.module"):
        up.load(run.path).plan  # noqa: B018


@pytest.mark.parametrize(
    ("test_task", "said"),
    [
        ("gym:CartPole-v1", r"gym:CartPole-v1 has observations Box.*gym:Pendulum-v1.* has Box.*\(3,\)"),
        ("gym:Pendulum-v1:params.max_torque=3", r"has actions Box\(-3\.0.*has Box\(-2\.0"),
        ("reverse", "'reverse' is text"),
        ("gym:Pendulm-v1", "Did you mean 'Pendulum-v1'"),
        ("Pendulum-v1", "written gym:Pendulum-v1"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run_begins(tmp_path: Path, test_task: str, said: str):
    with pytest.raises(TaskError, match=said):
        up.train("ppo", "gym:Pendulum-v1", test_task=test_task, **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_text_has_none(tmp_path: Path):
    with pytest.raises(UserError, match=r"--test-task gym:Pendulum-v1 goes with control; reverse is text"):
        up.train("grpo", "reverse", test_task="gym:Pendulum-v1", steps=1, out=tmp_path / "run")


def test_without_one_it_is_the_task():
    task = load_task("gym:CartPole-v1")
    assert load_test_task("", task) is task


def test_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    words = ["train", "ppo", "gym:Pendulum-v1", "--test-task", HEAVY, "--quiet", "--steps", "1", "--envs", "2", "--horizon", "8"]
    flags: argparse.Namespace = parsers()[0].parse_args([*words, "--eval-problems", "2", "--passes", "1"])
    assert flags.run(flags) == 0
    flags = parsers()[0].parse_args(["eval", "runs/ppo-gym-Pendulum-v1-0", "--json"])
    capsys.readouterr()
    assert looking.evaluate(flags) == 0 and json.loads(capsys.readouterr().out)["test_task"] == HEAVY
