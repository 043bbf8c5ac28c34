"""Rewards in whole runs: what the folder keeps, what is logged, and how a run goes on."""

from __future__ import annotations

import json
import tomllib
import warnings
from itertools import pairwise

import pytest

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.rewards import RewardError
from upslope.run import Watcher

SMALL = dict(
    model="tiny:layers=1,width=16", steps=2, tasks_per_step=2, samples_per_task=2, warm_start=0.0, eval_problems=2, max_tokens=4,
    audit=False, checkpoint_every=1,
)  # fmt: skip
WORDS = ["--model", "tiny:layers=1,width=16", "--steps", "1", "--tasks-per-step", "2", "--warm-start", "0", "--eval-problems", "2"]
WORDS += ["--max-tokens", "4", "--audit", "off", "--quiet"]
MINE = "def style(prompts, responses, answers):\n    return [len(r) / 4 for r in responses]\n"


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "answer": str(2 * i), "level": i % 2}) + "\n" for i in range(40)))
    (tmp_path / "mine.py").write_text(MINE)
    return str(file)


class Breaks(Watcher):
    def stepped(self, step, metrics):
        if step == 2:
            raise RuntimeError("crash")


def test_the_flag_repeats_and_every_reward_is_logged(data, tmp_path):
    rewards = ["exact", "length:max=200*0.1", f"{tmp_path / 'mine.py'}:style*0.3"]
    words = [word for text in rewards for word in ("--reward", text)]
    assert main(["train", "grpo", "--task", data, *words, *WORDS, "--out", str(tmp_path / "run")]) == 0
    run = up.load(tmp_path / "run")
    (step,) = run.metrics
    assert {"reward_exact", "reward_length", "reward_style", "reward_correct"} <= step.keys() and step["reward_length"] == 1.0
    assert step["reward"] == pytest.approx(step["reward_exact"] + 0.1 * step["reward_length"] + 0.3 * step["reward_style"])
    sample = json.loads((run.path / "samples.jsonl").read_text().splitlines()[0])
    assert set(sample["components"]) == {"exact", "length", "style", "correct"}
    assert sample["components"]["style"] == pytest.approx(len(sample["response"]) / 4)
    kept = tomllib.loads((run.path / "run.toml").read_text())["reward"]
    assert kept[:2] == ["exact", "length:max=200*0.1"] and kept[2].startswith("mine-") and kept[2].endswith("*0.3")
    assert 'class="chip">style' in (run.path / "report.html").read_text()


def test_a_run_with_several_goes_on_with_its_own_copy(data, tmp_path):
    whole = up.train("grpo", data, reward=["number", f"{tmp_path / 'mine.py'}:style*0.3"], **SMALL, out=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="crash"):
        up.train(
            "grpo", data, reward=["number", f"{tmp_path / 'mine.py'}:style*0.3"], **SMALL, out=tmp_path / "run", watcher=Breaks()
        )  # fmt: skip
    (tmp_path / "mine.py").unlink()
    run = up.resume(tmp_path / "run")
    assert (run.path / "samples.jsonl").read_bytes() == (whole.path / "samples.jsonl").read_bytes()
    assert run.plan.reward[0] == "number" and run.plan.reward[1].endswith("mine.py:style*0.3")


def test_what_cannot_be_kept_is_said_and_needed_again(data, tmp_path):
    calls = []

    def held(prompts, responses, answers):
        calls.append(len(responses))
        return [len(response) / 4 for response in responses]

    given = {"form": (held, 0.5), "right": "exact"}
    with (
        pytest.warns(Remark, match=r"the reward cannot be kept with the run: up.resume\(RUN, reward=...\)"),
        pytest.raises(RuntimeError),
    ):
        up.train("grpo", data, reward=given, **SMALL, out=tmp_path / "run", watcher=Breaks())
    table = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert table["reward"] == ["form", "right"] and table["unkept"] == ["reward"]
    with pytest.raises(UserError, match="Give it again"):
        up.resume(tmp_path / "run")
    with pytest.raises(RewardError, match="is no reward"):
        up.resume(tmp_path / "run", reward=3)
    run = up.resume(tmp_path / "run", reward=given)
    assert len(run.metrics) == 2 and "reward_form" in run.metrics[1] and calls


def test_where_a_reward_does_not_apply_its_metric_is_of_the_other_rows(data, tmp_path):
    def even(completions, level, **columns):
        return [None if each else 0.5 for each in level]

    def never(completions, **columns):
        return [None for _ in completions]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = up.train("bnpo", data, reward=[even, never, "length:max=9"], **SMALL | {"tasks_per_step": 8}, out=tmp_path / "run")
    assert all(step["reward_even"] == 0.5 and "reward_never" not in step for step in run.metrics)
    samples = [json.loads(line)["components"] for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert {each["even"] for each in samples} <= {None, 0.5} and {each["never"] for each in samples} == {None}


@pytest.mark.parametrize("given", [3, [None], {"a": ("exact", "x")}, ("exact", 0.5)])
def test_what_is_no_reward_is_refused_before_anything_is_made(given, data, tmp_path):
    with pytest.raises(UserError):
        up.train("grpo", data, reward=given, **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_comparison_takes_rewards_that_its_processes_can_find(data, tmp_path):
    from upslope.api.comparing import _question

    asked = _question(["grpo", "rloo"], data, reward={"right": "exact", "form": ("length:max=9", 0.5)})
    assert asked.reward == ("exact*1.0 as right", "length:max=9*0.5 as form")
    words = asked.cells()[0].command(tmp_path / "out")
    assert [word for flag, word in pairwise(words) if flag == "--reward"] == list(asked.reward)
    with pytest.raises(UserError, match=r"'lambda' is a reward that no file defines, and every run is a process of its own"):
        up.compare(["grpo"], data, reward=lambda prompts, responses, answers: [0.0], seeds=1)


def test_a_schema_is_found_from_every_folder(data, tmp_path, monkeypatch):
    (tmp_path / "s.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    run = up.train("grpo", data, reward="json:schema=s.json*0.5", **SMALL | {"steps": 1}, out=tmp_path / "run")
    monkeypatch.chdir("/")
    assert run.table["reward"] == [f"json:schema={tmp_path / 's.json'}*0.5"]
    assert up.load(run.path).policy is not None


def test_a_reward_is_chosen_from_answers_to_what_the_model_is_given(tmp_path, monkeypatch):
    from upslope.rollout import evaluation

    asked: list[object] = []
    whole = evaluation.answers_of

    def answers_of(engine, policy):
        answer = whole(engine, policy)
        return lambda prompts, *more: (asked.extend(prompts), answer(prompts, *more))[1]

    monkeypatch.setattr(evaluation, "answers_of", answers_of)
    rows = [{"prompt": [{"role": "user", "content": f"{number}+1="}], "answer": str(number + 1)} for number in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        up.train("grpo", rows, **SMALL, out=tmp_path / "run")
    assert asked and not any(isinstance(each, str) for each in asked), "messages, not their text"
