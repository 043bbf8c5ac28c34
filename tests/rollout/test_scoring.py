"""Scoring apart: the same rewards wherever they are given, and a reward that fails costs its answer, with the reason."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from small_learner import learner, weights

import upslope as up
from upslope.errors import UserError
from upslope.rollout.scoring import DROPPED, ScorerPool, ScoringPlan, Sheet, Unscored
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.problem_text import text_of
from upslope.tasks.text import Problem

MISBEHAVING = Path(__file__).parents[1] / "misbehaving_scorer.py"
SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 3, "tasks_per_step": 8, "samples_per_task": 4,
    "warm_start": 0.1, "eval_problems": 8, "lr": 1e-3, "warmup": 0, "threads": 1, "record": "none", "reuse": "off",
}  # fmt: skip


class ByHand(ScoringPlan):
    """Processes that do what answers say."""

    def command(self, channel: int) -> list[str]:
        return [sys.executable, str(MISBEHAVING), str(self.folder), str(channel), *(["--timed"] if self.timed else [])]


@pytest.fixture
def pool(tmp_path):
    made = []

    def start(**plan) -> ScorerPool:
        made.append(ScorerPool(ByHand(tmp_path, **({"count": 1} | plan))))
        return made[-1]

    yield start
    for each in made:
        each.close()
        assert not [state.pid for state in each.states if Path(f"/proc/{state.pid}").exists()], (
            "a closed pool leaves nothing behind"
        )


def scored(pool: ScorerPool, *groups: list[str]) -> list[float | str]:
    """What answers to some problems earned, or why they could not be scored."""
    problems = [text_of(Problem(f"problem {number}")) for number, group in enumerate(groups) for _ in group]
    sheet = Sheet(problems, [answer for group in groups for answer in group])
    pool.give_sheet(sheet)
    return [mark.why if isinstance(mark, Unscored) else mark.reward[0] for mark in pool.wait(sheet)]


def calls(folder: Path) -> list[list[str]]:
    return [file.read_text().split("\n") for file in folder.glob("call-*")]


@pytest.mark.parametrize(("fault", "kind", "words"), [
    ("die", "reward_died", "killed (SIGKILL)"), ("raise", "reward_raised", "ZeroDivisionError: divided by the answer"),
    ("nan", "reward_not_finite", "not all finite"), ("hang", "reward_hung", "longer than 3 s (--reward-seconds)"),
])  # fmt: skip
def test_an_answer_that_cannot_be_scored_is_dropped_and_those_beside_it_are_not(pool, tmp_path, fault, kind, words):
    made = pool(seconds=3.0 if fault == "hang" else None, retries=1)
    found = scored(made, [fault, "2"], ["3"])
    assert words in found.pop(0) and found == [2.0, 3.0]
    assert made.faults == {kind: 3, DROPPED: 1}, "once with the others, then alone, then alone again"
    assert sum(fault in call for call in calls(tmp_path)) == 3 and [fault] in calls(tmp_path)


def test_what_fails_once_is_scored_all_the_same(pool, tmp_path):
    made = pool(retries=0)
    assert scored(made, ["1", "once-die"], ["once-raise"]) == [1.0, 7.0, "faulty raised ZeroDivisionError: divided by the answer"]
    assert made.faults == {"reward_died": 1, "reward_raised": 1, DROPPED: 1}, "without retries one that fails alone is dropped"


def test_every_answer_is_scored_once_with_those_to_the_same_problem_and_none_is_dropped_for_being_slow(pool, tmp_path):
    made = pool(count=2)
    groups = [["1", "2"], ["slow", "3"], ["4"], ["5", "6"]]
    assert scored(made, *groups) == [1.0, 2.0, 7.0, 3.0, 4.0, 5.0, 6.0]
    assert sorted(calls(tmp_path)) == sorted(groups) and not made.faults


def test_a_time_of_its_own_is_measured_for_each_answer_if_asked_for(pool, tmp_path):
    sheet = Sheet([text_of(Problem("p"))] * 2, ["slow", "1"])
    made = pool(timed=True)
    made.give_sheet(sheet)
    slow, quick = made.wait(sheet)
    assert slow.seconds[0] >= 1.0 and 0 < quick.seconds[0] < slow.seconds[0]


def test_processes_that_never_get_going_end_the_run_with_what_they_said(pool, tmp_path):
    (tmp_path / "never-ready").touch()
    made = pool()
    with pytest.raises(UserError, match=r"reward processes were lost one after another.*no such reward.*logs"):
        scored(made, ["1"])


# -- what is left of a step -----------------------------------------------------------------------------------------------


class Losing:
    """Marks rows of a rollout as unscored: a whole group, all but one of another, and all of what a filter asks for later."""

    def __init__(self, made):
        self.all_of, self.dropped = made.rollout.all_of, 0
        made.rollout.all_of, self.samples = self, made.rollout.samples

    def __call__(self, step: int, attempt: int):
        rows = self.all_of(step, attempt)
        lost = range(rows.rows) if attempt == 1 else range(2 * self.samples - 1)
        for row in lost:
            rows.info[row]["unscored"] = "no opinion"
        self.dropped += len(lost)
        return rows


@pytest.mark.parametrize(
    "name", ["grpo", "rloo", "dapo", "gspo", "online-dpo", "polychromic", "t-ppo", "ppo", "dmpo", "spo-single-stream"]
)
def test_methods_learn_from_what_is_left_of_groups(name):
    made = learner(name)
    losing = Losing(made)
    before = weights(made)
    for step in (1, 2):
        told = made.step(step)
        assert made.rollout.unscored > 0
    assert losing.dropped >= 14 and all(torch.isfinite(torch.tensor(value)) for value in told.values())
    assert not torch.equal(before, weights(made)) and bool(torch.isfinite(weights(made)).all())


def test_an_unscored_answer_enters_no_statistic():
    """Without its bad rows a batch is learned from as if they had never been sampled."""
    made, other = learner("grpo"), learner("grpo")
    Losing(made)
    all_of = other.rollout.all_of
    other.rollout.all_of = lambda step, attempt: (
        (rows := all_of(step, attempt)).take_rows(slice(7, None)).replace(info=rows.info[7:])
    )
    told = [each.step(1) for each in (made, other)]
    assert told[0]["reward"] == told[1]["reward"] and torch.equal(weights(made), weights(other))


# -- whole runs ------------------------------------------------------------------------------------------------------------

REWARD = """
def score(prompts, responses, answers):
    for response, answer in zip(responses, answers):
        if {fails}:
            raise ValueError("no opinion on " + repr(response))
    return [float(a in r) + 0.1 * (a[:1] in r) for r, a in zip(responses, answers)]
"""


def rewarded(folder: Path, fails: str = "False") -> str:
    file = folder / "own.py"
    file.write_text(REWARD.format(fails=fails))
    return f"{file}:score"


def trained(out: Path, method: str = "grpo", **changes) -> up.Run:
    return up.train(method, **(SMALL | changes), out=out)


def same(one: up.Run, other: up.Run) -> bool:
    there = other.policy.weights()
    return all(torch.equal(tensor, there[name]) for name, tensor in one.policy.weights().items())


def test_a_run_ends_in_the_same_weights_wherever_its_answers_are_scored(tmp_path):
    reward = rewarded(tmp_path)
    here = trained(tmp_path / "here", reward=reward)
    one = trained(tmp_path / "one", reward=reward, reward_workers=1)
    two = trained(tmp_path / "two", reward=reward, reward_workers=2, shares=1, workers=1)
    assert same(here, one) and same(here, two)
    rewards = [[step["reward"] for step in run.metrics] for run in (here, one, two)]
    assert rewards[0] == rewards[1] == rewards[2] and any(rewards[0]), "the case must earn something to learn from"
    assert [step["unscored"] for step in one.metrics] == [0.0] * 3 and "unscored" not in here.metrics[0]
    states = json.loads((tmp_path / "two" / "workers.json").read_text())
    assert sum(state["rows"] for state in states["reward_workers"]) == 3 * 32 and len(states["workers"]) == 1
    assert (tmp_path / "two" / "logs" / "reward-1.txt").exists()


class Kills:
    """Kills a process that scores after some steps; after the last of them the run itself stops in the middle."""

    def __init__(self, folder: Path, at: tuple[int, ...]):
        self.folder, self.at = folder, at
        self.killed: list[int] = []

    def on_step(self, step: int, metrics: dict) -> None:
        if step in self.at:
            self.killed += json.loads((self.folder / "process.json").read_text())["reward_workers"]
            os.kill(self.killed[-1], signal.SIGKILL)
        if step == self.at[-1]:
            raise InterruptedError


def test_a_run_that_scores_while_it_learns_goes_on_after_kills_and_a_stop_as_if_undisturbed(tmp_path):
    ahead = {"max_staleness": 1, "steps": 5, "reward": rewarded(tmp_path), "checkpoint_every": 1}
    here = trained(tmp_path / "here", "asyncflow", **ahead)
    kills = Kills(tmp_path / "there", (1, 3))
    with pytest.raises(UserError, match="InterruptedError"):
        trained(tmp_path / "there", "asyncflow", **ahead, reward_workers=1, callbacks=[kills])
    there = up.resume(tmp_path / "there")
    assert len(kills.killed) == 2 and there.summary["faults"]["reward_died"] >= 1 and DROPPED not in there.summary["faults"]
    assert same(there, here) and [step["reward"] for step in there.metrics] == [step["reward"] for step in here.metrics]
    assert not any(Path(f"/proc/{pid}").exists() for pid in kills.killed)


def test_answers_that_nobody_can_score_are_left_out_and_told(tmp_path):
    reward = rewarded(tmp_path, "len(response) % 2 == 1 and response[:1] in 'aeiou'")
    run = trained(tmp_path / "run", reward=reward, reward_workers=1, steps=4, temperature=3.0)
    dropped = sum(step["unscored"] for step in run.metrics)
    assert dropped > 0 and run.summary["faults"][DROPPED] == dropped
    lines = [json.loads(line) for line in (tmp_path / "run" / "logs" / "unscored.jsonl").read_text().splitlines()]
    assert len(lines) == dropped and all("no opinion on" in line["unscored"] for line in lines)
    assert all(step["samples"] == 32 - step["unscored"] for step in run.metrics)


def test_where_nothing_can_be_scored_the_run_ends_with_the_rewards_own_words(tmp_path):
    with pytest.raises(UserError, match=r"none of the 32 answers of step 1 could be scored.*no opinion on"):
        trained(tmp_path / "run", reward=rewarded(tmp_path, "len(prompts) <= 4"), reward_workers=1)


def test_what_does_not_go_together_is_refused(tmp_path):
    def refused(text: str, method: str, **settings):
        with pytest.raises(UserError, match=text):
            set_up(up.methods.find(method), "reverse:length=2", SMALL["model"], Settings(warm_start=0.0, **settings))

    refused("samples nothing that could be scored", "sft", reward_workers=1)
    refused("what it samples next depends", "mcts-dpo", reward_workers=1)
    refused("Add --reward-workers 1", "grpo", reward_seconds=1.0)
    refused("Add --reward-workers 1", "grpo", reward_retries=3)
    with pytest.raises(UserError, match="goes with text"):
        up.train("ppo", "gym:CartPole-v1", reward_workers=1, out=tmp_path / "control")
    with pytest.raises(UserError, match="--reward-workers 1: the reward was given as a Python object"):
        trained(tmp_path / "run", reward_workers=1, reward=lambda prompts, responses, answers: [1.0] * len(prompts))
